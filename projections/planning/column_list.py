"""Column list: the columns that a view leaves out, whatever they are called by now.

A view names them by names, and a name may move: a column that is renamed stays out until its old
name is taken from the list, and whichever column gets a name of the list is out as well. So what is
kept are the numbers that Postgres gives to columns, by the name that each was left out by.
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
    """Returns the numbers of the columns that a view leaves out, by the names in its list.

    Args:
        view: The view.
        had: What this came to before; names that are not in its list any more do not count.
        shapes: Shapes of its table in which names are looked up.

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
    """Returns what columns that are left out are called in a shape of their table."""
    return tuple(column.name for column in shape.columns if column.number in out)
