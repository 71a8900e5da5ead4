"""The commit time of a row's insert, for a mirror that declares it, in any order of changes.

For each key, the newest known insert or delete counts. An insert has a commit time; after a delete,
the time is unknown until the next insert is known. The newer of the two wins, so order and
repetition do not matter. The value is stored beside the row, or beside the recorded delete, and
moves with the key between them. A row that the view excludes still exists at the source, so its
value is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from msgspec import structs

from projections.definition.columns import BEGUN_AT_COLUMN, BEGUN_COLUMN, VERSION_COLUMN
from projections.stores.delta.arrow import table_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from projections.changes.row_change import RowChange
    from projections.planning.view_plan import ViewPlan

_LATER: Final = f's."{BEGUN_COLUMN}" > coalesce(t."{BEGUN_COLUMN}", 0)'


class KeyState(NamedTuple):
    """What a table has of a key.

    Attributes:
        version: Version of its row, or of its delete.
        begun: Version of the newest insert or delete of the key.
        at_us: Commit time of that insert, microseconds since 1970; 0 for a delete or an unknown
            time.
    """

    version: int
    begun: int
    at_us: int


NOTHING: Final = KeyState(0, 0, 0)


def insert_only(change: RowChange) -> RowChange:
    """Reduces a change to what it reports of its row's insert."""
    return structs.replace(change, version=0, row=None, unchanged_columns=(), base=None)


def known(changes: Sequence[RowChange], by: Sequence[KeyState]) -> list[RowChange]:
    """Adds the stored insert of each key to its change, where it is newer."""
    return [
        structs.replace(change, begun=each.begun, begun_at_us=each.at_us)
        if each.begun > change.begun
        else change
        for change, each in zip(changes, by, strict=True)
    ]


def leaves_out(change: RowChange) -> bool:
    """Returns whether a delete may concern a row that the view only excludes."""
    return change.begun < change.version


def each_known(table: pa.Table, at: str) -> Iterator[KeyState]:
    """Yields what a table has of its keys.

    Args:
        table: Rows or deletes, with versions.
        at: Column with the time.
    """
    numbers = (table.column(name).to_pylist() for name in (VERSION_COLUMN, BEGUN_COLUMN))
    times = table.column(at).cast(pa.int64()).to_pylist()
    for version, begun, at_us in zip(*numbers, times, strict=True):
        yield KeyState(version, begun or 0, at_us or 0)


def as_rows(plan: ViewPlan, gone: pa.Table) -> pa.Table:
    """Renames the time of deletes to the columns of a view's table."""
    time = gone.column(BEGUN_AT_COLUMN)
    for name in plan.inserted_at:
        gone = gone.append_column(table_schema(plan).field(name), time)
    return gone.drop_columns([BEGUN_AT_COLUMN])


def remembering(merger: Any, newer: str) -> Any:
    """Updates a recorded delete with the newer version and the newer insert, independently."""
    parts = {VERSION_COLUMN: newer, BEGUN_COLUMN: _LATER, BEGUN_AT_COLUMN: _LATER}
    taken = {f'"{name}"': _one(f'"{name}"', when) for name, when in parts.items()}
    return merger.when_matched_update(taken, f"{newer} OR {_LATER}")


def updating(
    merger: Any, columns: Mapping[str, str], inserted_at: Sequence[str], newer: str
) -> Any:
    """Replaces stored rows by newer ones, and adds newly known insert times to all.

    Args:
        merger: The merge.
        columns: New value of each column, quoted.
        inserted_at: Columns with the time, quoted.
        newer: Condition that a row is newer than the stored one.
    """
    own = [*inserted_at, f'"{BEGUN_COLUMN}"']
    first = {name: _one(name, _LATER) for name in own}
    return merger.when_matched_update({**columns, **first}, newer).when_matched_update(
        {name: f"s.{name}" for name in own}, _LATER
    )


def _one(name: str, when: str) -> str:
    return f"CASE WHEN {when} THEN s.{name} ELSE t.{name} END"
