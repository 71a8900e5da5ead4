"""ViewPlan: a declared view bound to the table that the source really has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from projections.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.table import TableName, TableSchema
    from projections.view import MirrorView, Store

VERSION_COLUMN = "_version"
"""Column or field in which every store keeps `ChangePosition.version` beside a row."""

DELETED_FIELD = "_deleted"
"""Field that marks the lasting memory of a delete where it shares an index with live rows."""

ROW_ID_COLUMN = "_row_id"
"""Key of a mirror whose table has no key: the row's place in the source's order, as text."""


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """A view with all a job needs to keep it.

    Attributes:
        name: The view's name in every store.
        source: Name of its source, which prefixes its topics.
        topic: Kafka topic of its table.
        schema: The mirrored table.
        keys: Columns that identify a row; `(_row_id,)` for a table without a key, whose rows are
            only ever inserted.
        to: Stores it lives in.
    """

    name: str
    source: str
    topic: str
    schema: TableSchema
    keys: tuple[str, ...]
    to: frozenset[Store]

    @property
    def append_only(self) -> bool:
        """True for a view of a table without a key."""
        return self.keys == (ROW_ID_COLUMN,)


def plan_views(
    views: Iterable[MirrorView], schemas: Mapping[TableName, TableSchema]
) -> tuple[ViewPlan, ...]:
    """Binds views to tables.

    Args:
        views: Declared views of one source.
        schemas: The captured tables of that source, from its catalog.

    Raises:
        PlanError: A table is missing, a key column is missing or is not the table's key, or a
            column's name is reserved.
    """
    return tuple(_plan(view, schemas) for view in views)


def _plan(view: MirrorView, schemas: Mapping[TableName, TableSchema]) -> ViewPlan:
    schema = schemas.get(view.table)
    if schema is None:
        raise PlanError(f"view {view.name}: source has no table {view.table}")
    reserved = {VERSION_COLUMN, DELETED_FIELD, ROW_ID_COLUMN} & set(schema.by_name)
    if reserved:
        raise PlanError(f"view {view.name}: column {min(reserved)} is reserved")
    if view.keys and set(view.keys) != set(schema.key):
        raise PlanError(
            f"view {view.name}: keys are not the key of {view.table}",
            detail=f"declared {', '.join(view.keys)}; table has {', '.join(schema.key) or 'none'}",
            hint="a mirror follows the primary key (the replica identity) of its table",
        )
    return ViewPlan(
        view.name,
        view.source,
        view.table.topic(view.source),
        schema,
        schema.key or (ROW_ID_COLUMN,),
        view.to,
    )
