"""What a view does after its table has changed, decided from the change and the policy alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from cdc.schema_change.difference import ChangeKind, SchemaChange
from projections.definition.views import SchemaPolicy

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from cdc.table import TableName


class SchemaOutcome(StrEnum):
    """The outcome of a schema change for a view."""

    FOLLOWED = "followed"  # the view has the present columns of the table
    KEPT = "ignored"  # the view keeps its columns and ignores others
    WAITING = "records wait"  # the view keeps its columns; other records are quarantined
    PAUSED = "paused"  # the view is paused until it is resumed
    RESUMED = "resumed"  # a person has resumed it


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision for a view.

    Attributes:
        outcome: The outcome.
        read: Whether the whole table must be read again.
        rekeyed: Whether records older than the change no longer have a key in the view.
        reason: The decisive change.
    """

    outcome: SchemaOutcome
    read: bool = False
    rekeyed: bool = False
    reason: SchemaChange | None = None


_TABLE: Final = (ChangeKind.TABLE_RENAMED, ChangeKind.TABLE_DROPPED)
_ROWS: Final = (
    ChangeKind.REWRITTEN,
    ChangeKind.READS_OTHERWISE,
    ChangeKind.PARTITION_ATTACHED,
    ChangeKind.PARTITION_DETACHED,
)
"""Changes that leave columns and key unchanged."""

_FILLED: Final = (*_ROWS, ChangeKind.RETYPED)
"""Changes of rows that affect a view even if it keeps its columns."""


def as_seen(
    changes: Iterable[SchemaChange], table: TableName, unread: Container[int]
) -> tuple[SchemaChange, ...]:
    """Returns the changes of a table as they affect a view that does not read some columns.

    Changes of such a column itself do not count. But if rows were rewritten for one, or other
    effects are unknown, the same command may have changed other columns.

    Args:
        changes: The changes of the table.
        table: The table.
        unread: Numbers of the columns.
    """
    found = []
    for change in changes:
        if change.number not in unread:
            found.append(change)
        elif change.looked or change.computed or _rewrote(change):
            found.append(SchemaChange(ChangeKind.REWRITTEN, str(table), looked=change.looked))
    return tuple(found)


def _rewrote(change: SchemaChange) -> bool:
    return change.kind is ChangeKind.RETYPED and change.needs_read


def decide(
    policy: SchemaPolicy | None,
    changes: Iterable[SchemaChange],
    *,
    keyless: bool,
    keeps: bool = False,
    history: bool = False,
) -> Decision:
    """Decides how a view follows changes of its table.

    Args:
        policy: The declared policy; None for the default.
        changes: The changes of its table since the columns that it has.
        keyless: Whether its table has, or had, no key: then its rows cannot be read again.
        keeps: Whether it already kept columns that differ from its table's.
        history: Whether it is a history: with another key it would be another history.
    """
    changes = list(changes)
    stopping = _stopping(policy, changes, keyless=keyless, history=history)
    if stopping is not None:
        return Decision(SchemaOutcome.PAUSED, reason=stopping)
    shaped = [change for change in changes if change.kind not in _ROWS]
    first = next(iter(shaped), next(iter(changes), None))
    if policy is SchemaPolicy.QUARANTINE and (shaped or keeps):
        # a snapshot sends rows with the new columns, which would be quarantined as well
        return Decision(SchemaOutcome.WAITING, reason=first)
    if policy is SchemaPolicy.IGNORE and (shaped or keeps):
        filled = (c for c in changes if c.kind in _FILLED or c.computed or c.looked)
        return Decision(SchemaOutcome.KEPT, read=any(c.needs_read for c in filled), reason=first)
    return Decision(
        SchemaOutcome.FOLLOWED,
        read=any(change.needs_read for change in changes),
        rekeyed=any(change.kind is ChangeKind.KEY_CHANGED for change in changes),
        reason=first,
    )


def _stopping(
    policy: SchemaPolicy | None, changes: list[SchemaChange], *, keyless: bool, history: bool
) -> SchemaChange | None:
    """Returns the change that a view cannot or may not follow."""
    for change in changes:
        shaped = change.kind not in _ROWS
        if change.kind in _TABLE or (keyless and change.needs_read):
            return change
        if history and change.kind is ChangeKind.KEY_CHANGED:
            return change
        if policy is SchemaPolicy.PAUSE and shaped:
            return change
        if policy in (None, SchemaPolicy.IGNORE) and not change.compatible:
            return change
    return None
