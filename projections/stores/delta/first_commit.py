"""The commit of a row's insert, in a mirror's table that declares it, for any order of changes.

For each key, the newest known insert or delete counts: an insert has its commit; after a delete,
the commit of a following row is unknown until its insert is known too. The newer of two is right,
so their order and repetition do not matter. The value is stored beside the row, or beside the
recorded delete, and moves with the key between them. A row that the view does not admit still
exists, so its value is kept.
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
        version: Of its row, or of its delete.
        begun: Version of the newest insert or delete of the key.
        at_us: When that was committed, if it was an insert, microseconds since 1970; else 0.
    """

    version: int
    begun: int
    at_us: int


NOTHING: Final = KeyState(0, 0, 0)


def alone(change: RowChange) -> RowChange:
    """Returns what a change says of when its row was inserted, and nothing else."""
    return structs.replace(change, version=0, row=None, kept=(), base=None)


def known(changes: Sequence[RowChange], by: Sequence[KeyState]) -> list[RowChange]:
    """Returns changes with what is known of their keys, where that is newer."""
    return [
        structs.replace(change, begun=each.begun, begun_at_us=each.at_us)
        if each.begun > change.begun
        else change
        for change, each in zip(changes, by, strict=True)
    ]


def leaves_out(change: RowChange) -> bool:
    """Whether a delete may be of a row that is at its source and not in the view."""
    return change.begun < change.version


def each_known(table: pa.Table, at: str) -> Iterator[KeyState]:
    """Reads what a table has of its keys.

    Args:
        table: Rows or deletes, with their versions.
        at: The column with the time.
    """
    numbers = (table.column(name).to_pylist() for name in (VERSION_COLUMN, BEGUN_COLUMN))
    times = table.column(at).cast(pa.int64()).to_pylist()
    for version, begun, at_us in zip(*numbers, times, strict=True):
        yield KeyState(version, begun or 0, at_us or 0)


def as_rows(plan: ViewPlan, gone: pa.Table) -> pa.Table:
    """Returns deletes with the columns in which a view's table has the time."""
    time = gone.column(BEGUN_AT_COLUMN)
    for name in plan.inserted_at:
        gone = gone.append_column(table_schema(plan).field(name), time)
    return gone.drop_columns([BEGUN_AT_COLUMN])


def remembering(merger: Any, newer: str) -> Any:
    """Has a remembered delete take what is newer of each: its version, and when the row began."""
    parts = {VERSION_COLUMN: newer, BEGUN_COLUMN: _LATER, BEGUN_AT_COLUMN: _LATER}
    taken = {f'"{name}"': _one(f'"{name}"', when) for name, when in parts.items()}
    return merger.when_matched_update(taken, f"{newer} OR {_LATER}")


def updating(
    merger: Any, columns: Mapping[str, str], inserted_at: Sequence[str], newer: str
) -> Any:
    """Has newer rows take the place of those that there are, and every one what is newly known.

    Args:
        merger: The merge.
        columns: What a newer row sets, by column, quoted.
        inserted_at: The columns with the time, quoted.
        newer: The condition that a row is newer than the stored one.
    """
    own = [*inserted_at, f'"{BEGUN_COLUMN}"']
    first = {name: _one(name, _LATER) for name in own}
    return merger.when_matched_update({**columns, **first}, newer).when_matched_update(
        {name: f"s.{name}" for name in own}, _LATER
    )


def _one(name: str, when: str) -> str:
    return f"CASE WHEN {when} THEN s.{name} ELSE t.{name} END"
