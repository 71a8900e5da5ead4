"""RowChange: what a sink is given, and Applied: what it says it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class RowChange:
    """The newest known state of one key.

    Attributes:
        key: Values of the view's key columns, in the plan's order.
        version: `ChangePosition.version` of the change.
        row: Decoded values by column; None after a delete.
        committed_at_us: Commit time at the source, microseconds since 1970, UTC; 0 for rows that
            a snapshot read, whose commit nobody knows.
        kept: Columns that the change leaves as they are stored; in `row` they are None and mean
            nothing.
    """

    key: tuple[object, ...]
    version: int
    row: Mapping[str, object] | None
    committed_at_us: int
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of the changes given to a sink.

    Attributes:
        upserted: Rows inserted or replaced.
        deleted: Deletes remembered, whether or not a row was there.
        stale: Changes not newer than what the store had.
        size_bytes: What was sent to the store.
    """

    upserted: int = 0
    deleted: int = 0
    stale: int = 0
    size_bytes: int = field(default=0, compare=False)

    def __add__(self, other: Applied) -> Applied:
        return Applied(
            self.upserted + other.upserted,
            self.deleted + other.deleted,
            self.stale + other.stale,
            self.size_bytes + other.size_bytes,
        )
