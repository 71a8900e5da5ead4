"""Column names that a view cannot have: those that stores add, and those that one cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from projections.definition.columns import (
    DELETED_FIELD,
    HISTORY_BOOKKEEPING,
    HISTORY_CHANGE_COLUMNS,
    HISTORY_COLUMNS,
    INTERNAL_PREFIX,
    ROW_ID_COLUMN,
    VERSION_COLUMN,
)
from projections.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable

_ADDED: Final = frozenset({VERSION_COLUMN, DELETED_FIELD, ROW_ID_COLUMN})
_OF_TABLES: Final = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
"""Columns of a Delta table's change data feed."""

_OF_HISTORIES: Final = frozenset({*HISTORY_COLUMNS, *HISTORY_BOOKKEEPING, *HISTORY_CHANGE_COLUMNS})


def reserved(columns: Iterable[str]) -> str | None:
    """Returns the first name of a column that stores add themselves; None if there is none."""
    return next(
        (name for name in columns if name in _ADDED or name.startswith(INTERNAL_PREFIX)), None
    )


def untabular(columns: Iterable[str], *, history: bool = False) -> tuple[str, str] | None:
    """Returns a name that a Delta table cannot have, and the reason; None if it can have all.

    A Delta table does not distinguish capitals from small letters.

    Args:
        columns: The names.
        history: Whether the table is that of a history.
    """
    taken = _ADDED | _OF_TABLES | (_OF_HISTORIES if history else frozenset())
    seen: dict[str, str] = {}
    for name in columns:
        lower = name.lower()
        if lower in taken or lower.startswith(INTERNAL_PREFIX):
            return name, f"column {name} is reserved in a {'history' if history else 'table'}"
        if lower in seen:
            return name, f"the warehouse does not distinguish columns {seen[lower]} and {name}"
        seen[lower] = name
    return None


def refuse_reserved(view: str, columns: Iterable[str]) -> None:
    """Refuses columns that stores add themselves.

    Raises:
        PlanError: There is such a column.
    """
    if (name := reserved(columns)) is not None:
        raise PlanError(f"view {view}: column {name} is reserved", hint=_left_out(name))


def refuse_untabular(view: str, columns: Iterable[str], *, history: bool) -> None:
    """Refuses columns that a Delta table cannot have; see `untabular`.

    Raises:
        PlanError: There is such a column.
    """
    if (found := untabular(columns, history=history)) is not None:
        name, reason = found
        hint = _left_out(name)
        if not history:
            hint = f'leave the warehouse out, as in to=["search", "cache"]; {hint}'
        raise PlanError(f"view {view}: {reason}", hint=hint)


def _left_out(name: str) -> str:
    return f"leave the column out, as in except_column_list=[{name!r}], or rename it"
