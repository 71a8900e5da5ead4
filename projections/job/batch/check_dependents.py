"""Whether views made from others could be kept if what they read had other columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from projections.errors import ProjectionError
from projections.incremental.spark.analysis import analyse
from projections.incremental.spark.catalyst import opaque
from projections.incremental.spark.maintainer import definition_of, inputs_of, query_fault
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
    from projections.versions.dependents import Columns, Succession


def unfit(spec: JobSpec, plans: Iterable[ViewPlan]) -> dict[str, Fault]:
    """Analyses the query of every view made from others over what its inputs would be.

    No row is read. A view of which an input stands still stands with it, and is not told.

    Args:
        spec: The job; its views made from others.
        plans: The views that those are made from, bound to their tables as these would be. Of a
            view with several versions, the one that readers see.

    Returns:
        By view that could not be kept, why.
    """
    schemas = _structs(columns_elsewhere(spec))
    schemas |= {plan.view: _struct(columns_of(plan)) for plan in plans}
    return _unfit(session_beside(spec.config), spec.derived, schemas)


def stand_still(config: JobConfig, succession: Succession) -> dict[str, str]:
    """Tells which views would stand still once readers see another version of one that they read.

    The queries are analysed over the columns that would be there; no row is read. A view that does
    not fit what it reads as it is now is not told: it stands still already.

    Args:
        config: The job's configuration.
        succession: The views, and what they read.

    Returns:
        By view, why; each after what it is made from.
    """
    if succession.alike:
        return {}
    with session_ended(config) as session:
        views = succession.views
        then = _unfit(session, views, _structs(succession.then))
        # of the view itself: a version by that query is refused before anybody sees it
        if not then or any(name in succession.now for name in then):
            return {}
        now = _unfit(session, views, _structs(succession.now))
    found: dict[str, str] = {}
    for view in views:
        waits_for = [name for name in view.inputs if name in found]
        if waits_for:
            found[view.name] = f"stands still with {', '.join(waits_for)}"
        elif view.name in then and view.name not in now:
            fault = then[view.name]
            found[view.name] = ": ".join(filter(None, (fault.message, fault.detail)))
    return found


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
    """What Spark reads of a table: Delta's own account of types is Spark's."""
    return StructType.fromJson({"type": "struct", "fields": list(columns)})
