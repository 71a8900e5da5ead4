"""Whether views made from others could be kept if what they read had other columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from deltalake import Schema
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from projections.errors import ProjectionError
from projections.plan import HISTORY_BOOKKEEPING, VERSION_COLUMN
from projections.sinks.arrow import table_schema
from projections.sinks.history_form import HistoryForm
from projections.spark.derivation.analysis import analyse
from projections.spark.derivation.catalyst import opaque
from projections.spark.derived import definition_of, inputs_of, query_fault
from projections.spark.session import session_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from projections.fault import Fault
    from projections.plan import ViewPlan
    from projections.spec import JobSpec
    from projections.view import DerivedView

_OWN_COLUMNS = {VERSION_COLUMN, *HISTORY_BOOKKEEPING}


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
    session = session_beside(spec)
    schemas = {plan.view: _columns(plan) for plan in plans}
    faults: dict[str, Fault] = {}
    waiting = list(spec.derived)
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


def _columns(plan: ViewPlan) -> StructType:
    """What Spark reads of a view's table: Delta's own account of types is Spark's."""
    table = table_schema(plan) if plan.history is None else HistoryForm(plan).states_schema
    told = StructType.fromJson(orjson.loads(Schema.from_arrow(table).to_json()))
    return StructType([column for column in told if column.name not in _OWN_COLUMNS])
