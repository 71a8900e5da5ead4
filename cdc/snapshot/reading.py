"""A read under way: at which stage it is, and what of it can be done next."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdc.snapshot.chunk import Chunk
    from cdc.snapshot.progress import KeyRange
    from cdc.snapshot.read_point import ReadPoint
    from cdc.snapshot.reads import Read
    from cdc.snapshot.table_facts import TableFacts

PAUSE_MAX_S: Final = 60.0
"""Longest pause between two attempts."""

_PAUSE_FIRST_S: Final = 1.0


class SnapshotStage(Enum):
    """What comes next for a read."""

    ASKED = auto()  # its position has to be taken
    PLACING = auto()  # its position has been taken, and writers are waited for
    PLACED = auto()  # it has to be cut into ranges
    READING = auto()  # ranges are read
    READ = auto()  # every row is in the topic, and its end has to be noted
    OVER = auto()  # done, or taken away


@dataclass
class SnapshotRun:
    """One read that this reader is at; used by one thread.

    Attributes:
        read: As it stands.
        stage: What comes next.
        table: The table as it was before the position was taken.
        point: The position that is waited for.
        parts: Its ranges, as far as they have been read.
        last: What came of the last chunk of each range.
        busy: Ranges, or None for another piece of work, that a worker is at.
        not_before: When it may go on after a failure, by the monotonic clock.
        failures: How many in a row.
    """

    read: Read
    stage: SnapshotStage = SnapshotStage.ASKED
    table: TableFacts | None = None
    point: ReadPoint | None = None
    parts: list[KeyRange] = field(default_factory=list)
    last: dict[int, Chunk] = field(default_factory=dict)
    busy: set[int | None] = field(default_factory=set)
    not_before: float = 0.0
    failures: int = 0

    def __post_init__(self) -> None:
        progress = self.read.progress
        if self.read.read_lsn is not None and progress is not None:
            self.resume(list(progress.ranges))

    def resume(self, parts: list[KeyRange]) -> None:
        """Goes on with these ranges."""
        self.parts = parts
        self.last.clear()
        self.stage = (
            SnapshotStage.READ if all(part.done for part in parts) else SnapshotStage.READING
        )

    def restart(self) -> None:
        """Begins again, with a new position."""
        self.stage, self.point, self.table, self.parts = SnapshotStage.ASKED, None, None, []
        self.last.clear()

    @property
    def due(self) -> bool:
        """Whether it may go on now."""
        return time.monotonic() >= self.not_before and self.stage is not SnapshotStage.OVER

    @property
    def rank(self) -> tuple[int, int, int]:
        """The least comes first: repairs of single rows, then small tables."""
        kind = 0 if self.read.keys is not None else 1 if self.read.predicate is not None else 2
        return kind, self.read.rows_expected or 0, self.read.id

    def next_part(self) -> int | None:
        """Returns an unfinished range without a reader; None if there is none."""
        if self.stage is not SnapshotStage.READING:
            return None
        free = (n for n, part in enumerate(self.parts) if not part.done and n not in self.busy)
        return next(free, None)

    def failed(self) -> None:
        """Notes a failure after which it is retried: the more in a row, the later."""
        self.failures += 1
        pause_s = min(PAUSE_MAX_S, _PAUSE_FIRST_S * 2 ** (self.failures - 1))
        self.not_before = time.monotonic() + pause_s
