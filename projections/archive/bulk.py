"""Bulk: what a replay hands to an engine that works with many tasks at once.

The engine does the two parts of a mirror's replay that cost time: it finds the newest record of
each key, and it decodes and writes these. The replay keeps the rest: what an archive has, the keys
of which one record is not enough, where it goes on, and every record that the engine gives back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from projections.archive.fold import FoldedRows, Integers
    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter
    from projections.changes.applier import Held
    from projections.planning.view_plan import ViewPlan

    Done = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class BulkFold:
    """A topic that is folded.

    Attributes:
        scan: The archive.
        topic: The topic.
        left_to_read: Version before which records do not count.
        taken: Which records are taken.
        share: Of its time, how much each task takes at most.
        named: Keys of which the entries are wanted, and no others; None for all.
    """

    scan: ArchiveScan
    topic: str
    left_to_read: int
    taken: RecordFilter
    share: float
    named: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class BulkPart:
    """Newest records of keys that are written in one commit.

    Attributes:
        topic: Their topic.
        rows: Their numbers in the archive, rising.
        mark: What tells the commits of this replay from those of any other.
        number: Number of the part in it, from 1.
        share: Of its time, how much each task takes at most.
        held: What of the view waits already.
    """

    topic: str
    rows: Integers
    mark: str
    number: int
    share: float
    held: Mapping[str, Held]


@dataclass(frozen=True, slots=True)
class Filled:
    """What became of a part.

    Attributes:
        upserted: Rows that were written.
        deleted: Deletes that were remembered.
        left: Numbers of the records that were not written, rising: they go the way of all others.
    """

    upserted: int
    deleted: int
    left: Integers


class BulkEngine(Protocol):
    """Folds topics and fills tables with many tasks.

    Attributes:
        rows_min: Rows of an archive below which a replay takes less time without it.
    """

    rows_min: int

    def ready(self, plan: ViewPlan) -> bool:
        """Tells whether the tables of a view are there, and as they were made.

        Args:
            plan: The view.
        """

    def fold(
        self, scan: ArchiveScan, topic: str, left_to_read: int, taken: RecordFilter, done: Done
    ) -> FoldedRows:
        """Finds the newest record of each key.

        Args:
            scan: The archive.
            topic: The topic.
            left_to_read: Version before which records do not count.
            taken: Which records are taken.
            done: Told every now and then how many more rows were looked at; what it raises ends
                the work.
        """

    def look_up(  # noqa: PLR0913, PLR0917  # what a fold takes, and keys
        self,
        scan: ArchiveScan,
        topic: str,
        left_to_read: int,
        taken: RecordFilter,
        keys: Collection[str],
        done: Done,
    ) -> Integers:
        """Returns the numbers of the newest records of some keys; see `fold`."""

    def fill(self, scan: ArchiveScan, plan: ViewPlan, part: BulkPart, done: Done) -> Filled:
        """Writes newest records to the tables of a view, once however often it is asked to.

        Args:
            scan: The archive.
            plan: The view.
            part: The records.
            done: Told every now and then how many more records were written; see `fold`.

        Raises:
            SinkUnavailableError: The tables cannot be read or written.
        """
