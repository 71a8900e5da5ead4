"""Column list: the columns that a view excludes, whatever their present names.

A view lists names, and columns can be renamed: a renamed column stays excluded until its old name
is removed from the list, and any column that gets a listed name is excluded as well. The list is
therefore stored as Postgres' column numbers, by the name under which each was excluded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from cdc.schema_change.shape import TableShape
    from projections.definition.views import MirrorView


def numbered(
    view: MirrorView, had: Mapping[str, tuple[int, ...]], shapes: Iterable[TableShape]
) -> dict[str, tuple[int, ...]]:
    """Returns the numbers of the excluded columns, by the names in the view's list.

    Args:
        view: The view.
        had: The previous result; names no longer in the list are ignored.
        shapes: Schemas of its table in which names are looked up.

    Raises:
        PlanError: No column has, or had, one of the names.
    """
    columns = [column for shape in shapes for column in shape.columns]
    found = {}
    for name in view.left_out:
        numbers = {column.number for column in columns if column.name == name}
        if not numbers and name not in had:
            raise PlanError(f"view {view.name}: {view.table} has no column {name}")
        found[name] = tuple(sorted(numbers.union(had.get(name, ()))))
    return found


def named(shape: TableShape, out: Container[int]) -> tuple[str, ...]:
    """Returns the names of excluded columns in one schema of their table."""
    return tuple(column.name for column in shape.columns if column.number in out)
