"""Checks whether derived views still fit if the columns of their inputs change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from projections.errors import ProjectionError
from projections.incremental.spark.analysis import analyse
from projections.incremental.spark.catalyst import opaque
from projections.incremental.spark.maintainer import definition_of, inputs_of
from projections.incremental.spark.query_fault import query_fault
from projections.job.spark.session import session_beside, session_ended
from projections.versions.dependents import columns_elsewhere, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from projections.common.fault import Fault
    from projections.definition.views import DerivedView
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.versions.dependents import Columns, Dependents


def unfit(spec: JobSpec, plans: Iterable[ViewPlan]) -> dict[str, Fault]:
    """Analyses the query of every derived view over the future columns of its inputs.

    No row is read. A view that is paused only because an input is paused is not reported.

    Args:
        spec: The job, with its derived views.
        plans: Their input views, bound to their future tables, each by its active version.

    Returns:
        Why, for each view that no longer fits.
    """
    schemas = _structs(columns_elsewhere(spec))
    schemas |= {plan.view: _struct(columns_of(plan)) for plan in plans}
    return _unfit(session_beside(spec.config), spec.derived, schemas)


def stand_still(config: JobConfig, dependents: Dependents) -> dict[str, str]:
    """Returns the derived views that would pause after a cutover to another version of an input.

    The queries are analysed over the future columns; no row is read. A view that does not fit its
    present inputs is left out, since it is paused already.

    Returns:
        Why, by view; each view after its inputs.
    """
    if dependents.alike:
        return {}
    with session_ended(config) as session:
        views = dependents.views
        then = _unfit(session, views, _structs(dependents.then))
        # an invalid query of the view itself is refused before its version becomes active
        if not then or any(name in dependents.now for name in then):
            return {}
        now = _unfit(session, views, _structs(dependents.now))
    reasons: dict[str, str] = {}
    for view in views:
        waits_for = [name for name in view.inputs if name in reasons]
        if waits_for:
            reasons[view.name] = f"stands still with {', '.join(waits_for)}"
        elif view.name in then and view.name not in now:
            fault = then[view.name]
            reasons[view.name] = ": ".join(filter(None, (fault.message, fault.detail)))
    return reasons


def _unfit(
    session: SparkSession, views: Iterable[DerivedView], known: Mapping[str, StructType]
) -> dict[str, Fault]:
    schemas = dict(known)
    faults: dict[str, Fault] = {}
    waiting = [view for view in views if view.name not in schemas]
    while ready := [view for view in waiting if schemas.keys() >= set(view.inputs)]:
        waiting = [view for view in waiting if view not in ready]
        for view in ready:
            try:
                schemas[view.name] = _result(session, view, schemas)
            except (ProjectionError, PySparkException, Py4JJavaError) as error:
                faults[view.name] = query_fault(view.name, error)
    return faults


def _result(
    session: SparkSession, view: DerivedView, schemas: Mapping[str, StructType]
) -> StructType:
    definition = definition_of(view, session)
    read = inputs_of(definition, schemas)
    inputs = {name: schemas[name] for name in view.inputs if name in read}
    derivation = analyse(session, definition, inputs, view.keys)
    frames = {name: opaque(session, name, schema) for name, schema in inputs.items()}
    return derivation.definition(frames).schema


def _structs(columns: Mapping[str, Columns]) -> dict[str, StructType]:
    return {name: _struct(each) for name, each in columns.items()}


def _struct(columns: Columns) -> StructType:
    """Returns Spark's type of a table; Delta records types in Spark's own form."""
    return StructType.fromJson({"type": "struct", "fields": list(columns)})
