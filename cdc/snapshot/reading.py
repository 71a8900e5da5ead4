"""A running snapshot: its stage, and the work that can be done next."""

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
    """The stage of a snapshot; each names the work that comes next."""

    ASKED = auto()  # requested; determine its position
    PLACING = auto()  # position determined; wait for running writers
    PLACED = auto()  # position reached; split the table into ranges
    READING = auto()  # read the ranges
    READ = auto()  # every row is in the topic; record the end offsets
    OVER = auto()  # done, cancelled, or continued by another process


@dataclass
class SnapshotRun:
    """A snapshot that this reader runs; used by one thread.

    Attributes:
        read: The recorded snapshot.
        stage: Its stage.
        table: The table before the position was determined.
        point: The position, while writers are waited for.
        parts: Its ranges with their progress.
        last: Result of the last chunk of each range.
        busy: Ranges that a worker reads; None stands for other work.
        not_before: Earliest time of the next attempt after a failure, by the monotonic clock.
        failures: Number of consecutive failures.
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
        """Continues with these ranges."""
        self.parts = parts
        self.last.clear()
        self.stage = (
            SnapshotStage.READ if all(part.done for part in parts) else SnapshotStage.READING
        )

    def restart(self) -> None:
        """Restarts the snapshot with a new position."""
        self.stage, self.point, self.table, self.parts = SnapshotStage.ASKED, None, None, []
        self.last.clear()

    @property
    def due(self) -> bool:
        """Returns whether it may continue now."""
        return time.monotonic() >= self.not_before and self.stage is not SnapshotStage.OVER

    @property
    def rank(self) -> tuple[int, int, int]:
        """Returns its priority, lowest first: single rows, then conditions, then small tables."""
        kind = 0 if self.read.keys is not None else 1 if self.read.predicate is not None else 2
        return kind, self.read.rows_expected or 0, self.read.id

    def next_part(self) -> int | None:
        """Returns an unfinished range that no worker reads; None if there is none."""
        if self.stage is not SnapshotStage.READING:
            return None
        free = (n for n, part in enumerate(self.parts) if not part.done and n not in self.busy)
        return next(free, None)

    def failed(self) -> None:
        """Records a failure, and schedules the retry with exponential backoff."""
        self.failures += 1
        pause_s = min(PAUSE_MAX_S, _PAUSE_FIRST_S * 2 ** (self.failures - 1))
        self.not_before = time.monotonic() + pause_s
