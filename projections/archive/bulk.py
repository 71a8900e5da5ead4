"""Bulk: the part of a replay that an engine does with tasks.

The engine does the two expensive steps of a mirror's replay: it finds the newest record of each
key, and it decodes and writes these. Other views it fills from all records of their topics; see
`projections.archive.lanes`. The replay does the rest: it determines what the archive has and where
to continue, and handles the keys that need more than that and every record that the engine returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from projections.archive.fold import FoldedRows, Integers
    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter
    from projections.changes.task_outcome import BlockedKeys
    from projections.planning.view_plan import ViewPlan

    OnProgress = Callable[[int], None]

FILLING: Final = ".filling"
"""Suffix of the folder in which tasks work that fill a version."""


@dataclass(frozen=True, slots=True)
class BulkFold:
    """A topic to fold.

    Attributes:
        scan: The archive.
        topic: The topic.
        left_to_read: Version before which records do not count.
        taken: The filter of records.
        share: Greatest share of its time that each task takes.
        named: Only the entries of these keys are returned; None for all.
    """

    scan: ArchiveScan
    topic: str
    left_to_read: int
    taken: RecordFilter
    share: float
    named: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkWrite:
    """What every write in bulk needs.

    Attributes:
        mark: The identity of this replay in its commits.
        share: Greatest share of its time that each task takes.
        held: Quarantined keys of the view.
    """

    mark: str
    share: float
    held: Mapping[str, BlockedKeys]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPart(BulkWrite):
    """Newest records of keys that are written in one commit.

    Attributes:
        topic: Their topic.
        rows: Their numbers in the archive, rising.
        number: Number of the part in the replay, from 1.
    """

    topic: str
    rows: Integers
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkTopics(BulkWrite):
    """All records of a view's topics, from which it is filled.

    Attributes:
        topics: The topics, in the order in which a replay reads them.
        taken: The filter of records.
        records: How many records count for the progress.
        digest: Digest of the code that converts events to rows; see `EventForm.code`.
    """

    topics: tuple[str, ...]
    taken: RecordFilter
    records: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Filled:
    """The result of writing a part.

    Attributes:
        upserted: Rows that were written.
        deleted: Deletes that were recorded.
        left: Numbers of the records that were not written, rising; the replay writes them one by
            one.
        filtered: Records that the view does not need: tombstones, records that a snapshot replaces,
            and events of other types.
    """

    upserted: int
    deleted: int
    left: Integers
    filtered: int = 0


class BulkEngine(Protocol):
    """Folds topics and fills tables with tasks."""

    def ready(self, plan: ViewPlan) -> bool:
        """Returns whether the tables of a view exist and are still empty."""

    def fold(self, work: BulkFold, on_progress: OnProgress) -> FoldedRows:
        """Finds the newest record of each key.

        Args:
            work: The topic.
            on_progress: Receives the number of further rows read, at intervals; an exception that
                it raises ends the work.
        """

    def look_up(self, work: BulkFold, on_progress: OnProgress) -> Integers:
        """Returns the numbers of the newest records of the named keys; see `fold`."""

    def fill(
        self, scan: ArchiveScan, plan: ViewPlan, part: BulkPart, on_progress: OnProgress
    ) -> Filled:
        """Writes newest records to the tables of a view, once even if it is called repeatedly.

        Args:
            scan: The archive.
            plan: The view.
            part: The records.
            on_progress: Receives the number of further records written, at intervals; see `fold`.

        Raises:
            SinkUnavailableError: The tables cannot be read or written.
        """

    def fill_from_all(
        self, scan: ArchiveScan, plan: ViewPlan, work: BulkTopics, on_progress: OnProgress
    ) -> Filled:
        """Writes a view, each commit once even if it is called repeatedly.

        All records of a key are written, or all of them are returned.

        Args:
            scan: The archive.
            plan: The view.
            work: Its records.
            on_progress: Receives the number of further records written, at intervals; see `fold`.

        Raises:
            SinkUnavailableError: The tables cannot be read or written.
        """
