"""The difference between two shapes of a table, and its effect on existing rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from cdc.schema_change.shape import BASELINE, CREATED
from cdc.schema_change.widening import widens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.schema_change.shape import ColumnShape, ShapeVersion, TableHistory, TableShape


class ChangeKind(StrEnum):
    """The kind of a change."""

    ADDED = "column added"
    DROPPED = "column dropped"
    RENAMED = "column renamed"
    RETYPED = "column retyped"
    READS_OTHERWISE = "stored values read otherwise"
    REWRITTEN = "rows rewritten"
    KEY_CHANGED = "key changed"
    TABLE_RENAMED = "table renamed"
    TABLE_DROPPED = "table dropped"
    PARTITION_ATTACHED = "partition attached"
    PARTITION_DETACHED = "partition detached"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference between two shapes.

    Attributes:
        kind: Its kind.
        what: The changed column, table or partition, by its former name.
        now: New name, type or key; for an added column its type; else empty.
        before: Former type or key; else empty.
        compatible: Whether every row of the old shape has one exact form in the new.
        needs_read: Whether existing rows changed without a record in the log, so that they must be
            read again.
        computed: Whether Postgres wrote a computed value into each existing row.
        looked: Whether only a comparison detected it: other changes may have happened in between,
            so the table must be snapshotted again.
        number: Column number; 0 if it does not concern one column.
    """

    kind: ChangeKind
    what: str
    now: str = ""
    before: str = ""
    compatible: bool = True
    needs_read: bool = True
    computed: bool = False
    looked: bool = False
    number: int = field(default=0, compare=False)

    def __str__(self) -> str:
        parts = " to ".join(filter(None, (self.before, self.now)))
        return f"{self.kind}: {self.what}" + (f" ({parts})" if parts else "")


def differences(
    old: TableShape, new: TableShape | None, rewritten: bool | None, command: str = ""
) -> tuple[SchemaChange, ...]:
    """Compares two shapes of one table.

    Args:
        old: The earlier shape.
        new: The later one; None if the table is gone.
        rewritten: Whether rows got values that are missing from the log; None if unknown.
        command: The command, if the source recorded it.
    """
    if new is None or new.oid != old.oid:
        # a new table with the same name shares nothing with the old one
        gone = SchemaChange(ChangeKind.TABLE_DROPPED, str(old.table), compatible=False)
        return (gone,)
    return (
        *_table(old, new),
        *_columns(old, new, rewritten),
        *_key(old, new),
        *_partitions(old, new, command),
    )


def changes_of(
    history: TableHistory, after_id: int = 0
) -> list[tuple[ShapeVersion, tuple[SchemaChange, ...]]]:
    """Returns each version of a table that followed another, with what it changed.

    Args:
        history: The table's shapes.
        after_id: Leave out notes up to this one.
    """
    found = []
    for earlier, later in zip(history.versions, history.versions[1:], strict=False):
        if later.id > after_id and earlier.shape is not None and later.command != BASELINE:
            changed = differences(earlier.shape, later.shape, later.rewritten, later.command)
            if later.seen_after is not None:
                changed = tuple(replace(c, needs_read=True, looked=True) for c in changed)
            found.append((later, changed))
    return found


def _table(old: TableShape, new: TableShape) -> Iterator[SchemaChange]:
    if old.table != new.table:
        yield SchemaChange(
            ChangeKind.TABLE_RENAMED, str(old.table), str(new.table), compatible=False
        )


def _columns(old: TableShape, new: TableShape, rewritten: bool | None) -> Iterator[SchemaChange]:
    before, after = old.by_number, new.by_number
    explained = False
    for number, column in before.items():
        now = after.get(number)
        if now is None:
            yield SchemaChange(
                ChangeKind.DROPPED, column.name, before=column.type_name, number=number
            )
            continue
        if now.name != column.name:
            yield SchemaChange(ChangeKind.RENAMED, column.name, now.name, number=number)
        if now.type_id != column.type_id:
            explained = True
            yield _retyped(column, now, rewritten)
        elif column.reads_otherwise(now):
            yield SchemaChange(
                ChangeKind.READS_OTHERWISE, column.name, column.type_name, number=number
            )
    for number, column in after.items():
        if number not in before:
            computed = column.default and column.missing is None
            explained |= computed
            yield SchemaChange(
                ChangeKind.ADDED,
                column.name,
                column.type_name,
                needs_read=computed or column.missing is not None,
                computed=computed,
                number=number,
            )
    # a column added and dropped between two comparisons has left a gap in the numbers
    passed = rewritten is None and new.last_number - old.last_number > len(after.keys() - before)
    if passed or (rewritten and not explained):
        yield SchemaChange(ChangeKind.REWRITTEN, str(old.table))


def _retyped(old: ColumnShape, new: ColumnShape, rewritten: bool | None) -> SchemaChange:
    return SchemaChange(
        ChangeKind.RETYPED,
        old.name,
        new.type_name,
        old.type_name,
        compatible=widens(old.type_name, new.type_name),
        # a rewriting cast may use any expression, regardless of the types
        needs_read=rewritten is not False,
        number=new.number,
    )


def _key(old: TableShape, new: TableShape) -> Iterator[SchemaChange]:
    if old.key_names != new.key_names or old.key != new.key:
        yield SchemaChange(
            ChangeKind.KEY_CHANGED,
            str(old.table),
            ", ".join(new.key_names) or "none",
            ", ".join(old.key_names) or "none",
            compatible=False,
        )


def _partitions(old: TableShape, new: TableShape, command: str) -> Iterator[SchemaChange]:
    before, after = dict(old.partitions), dict(new.partitions)
    for oid, name in after.items():
        if oid not in before:
            filled = command != CREATED
            yield SchemaChange(ChangeKind.PARTITION_ATTACHED, name, needs_read=filled)
    for oid, name in before.items():
        if oid not in after:
            yield SchemaChange(ChangeKind.PARTITION_DETACHED, name)
