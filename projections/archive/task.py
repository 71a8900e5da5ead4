"""Inputs and results of a replay: targets, options, resume position, figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from projections.archive.scan import ArchiveMark

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cdc.snapshot.reads import Read
    from projections.archive.bulk import BulkEngine
    from projections.archive.progress import ReplayProgress
    from projections.archive.survey import RecordFilter
    from projections.changes.row_change import ReadSpan
    from projections.changes.sink import Sink
    from projections.changes.sweeps import Sweep
    from projections.changes.task_outcome import BlockedKeys, UnappliedRecord, ViewCount
    from projections.common.offsets import Offsets
    from projections.planning.view_plan import ViewPlan

CHANGES_PER_WRITE: Final = 100_000


class Had(msgspec.Struct, frozen=True):
    """What views already have of an archive; a catch-up round replays only later records.

    Attributes:
        ends: Topic, partition and offset after the last record that they have.
        archive: Version of the archive with these records only, and a digest of its files; None to
            read all files.
    """

    ends: list[tuple[str, int, int]]
    archive: tuple[int, str] | None = None

    @property
    def offsets(self) -> Offsets:
        """Returns the offset after the last record that they have, by topic and partition."""
        return {(topic, partition): end for topic, partition, end in self.ends}

    @property
    def mark(self) -> ArchiveMark | None:
        """Returns the version of the archive whose files can be skipped."""
        return None if self.archive is None else ArchiveMark(*self.archive)


STEPS: Final = 2
"""Changes where a view of an interrupted replay would have other steps than before."""


class ReplayState(msgspec.Struct, frozen=True):
    """The resume position of a replay: small, with plain values only.

    Attributes:
        archive_version: Version of the archive that it reads.
        ends: Topic, partition and offset after the last record to read.
        step: Its current step.
        part: The next part of that step.
        had: For a catch-up round, what the views had before it.
        bulk: Whether its steps are those of a replay with a bulk engine.
        form: Which steps replays have; see `STEPS`. It is 0 in what older releases wrote.
    """

    archive_version: int
    ends: list[tuple[str, int, int]]
    step: int = 0
    part: int = 0
    had: Had | None = None
    bulk: bool = False
    form: int = 0

    def to_json(self) -> bytes:
        """Returns it as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(text: bytes | str) -> ReplayState:
        """Reads it back."""
        return _STATES.decode(text)


_STATES: Final = msgspec.json.Decoder(ReplayState)


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """Views of one store to fill.

    Attributes:
        plans: The views.
        open_sink: Opens the store; the replay closes it.
        held: Quarantined keys, by view.
        set_aside: Receives records that cannot be written, and how far views were truncated, by
            name, and stores both before it returns. Without it, `ReplayResult` has both.
        changes_per_write: Number of changes of a topic per write.
        bulk: Fills tables with many tasks; None to write record by record.
    """

    plans: tuple[ViewPlan, ...]
    open_sink: Callable[[], Sink]
    held: Mapping[str, BlockedKeys] = field(default_factory=dict)
    set_aside: Callable[[Sequence[UnappliedRecord], Mapping[str, int]], None] | None = None
    changes_per_write: int = CHANGES_PER_WRITE
    bulk: BulkEngine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a replay runs.

    Attributes:
        through: Offsets below which records are read, by topic and partition; all for missing ones.
        taken: A filter of records, for when offsets do not decide.
        had: For a catch-up round, what the views already have; without `taken`.
        version: Version of the archive; None for the newest.
        archived: The archive's recorded end of each partition; see `Archive.ends`.
        whole: The newest finished snapshot of each table, by topic. An archive that lacks the first
            records may be complete since then; and rows that the snapshot does not have are
            removed.
        spans: The snapshots of the table, for a history.
        share: Greatest share of the time that the replay uses, above 0 to 1.
        stopped: Set to stop it; checked several times a second, except during a write.
        progress: Receives the progress, twice a second.
        note: Receives resume positions, to be stored.
        resume: Position to resume from.
        scratch: Folder for sorting; None for the system's own.
    """

    through: Offsets | None = None
    taken: RecordFilter | None = None
    had: Had | None = None
    version: int | None = None
    archived: Offsets = field(default_factory=dict)
    whole: Mapping[str, Read] = field(default_factory=dict)
    spans: Sequence[ReadSpan] = ()
    share: float = 1.0
    stopped: threading.Event | None = None
    progress: Callable[[ReplayProgress], None] = lambda _: None
    note: Callable[[ReplayState], None] = lambda _: None
    resume: ReplayState | None = None
    scratch: Path | None = None


USUAL: Final = ReplayOptions()
"""The whole archive, at full speed."""


@dataclass(frozen=True, slots=True)
class Swept:
    """A view from which the replay removed rows that a snapshot does not have.

    Attributes:
        target: Number of the target.
        view: The view.
        sweep: The version up to which rows were removed, as the job records it.
        removed: Number of rows.
    """

    target: int
    view: str
    sweep: Sweep
    removed: int


@dataclass(slots=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        ends: Offset after the last record read, by topic and partition; unchanged if a catch-up
            round read none.
        archive: The version of the archive that was read.
        records: Records of the topics in the archive that the filter accepts.
        counts: For each target, the outcome of the delivered records, by view.
        waiting: For each target, records that could not be written, if `set_aside` did not receive
            them.
        truncated: For each target, how far views were truncated, by name.
        swept: Rows removed because snapshots do not have them.
    """

    ends: Offsets
    archive: ArchiveMark
    records: int = 0
    counts: list[dict[str, ViewCount]] = field(default_factory=list)
    waiting: list[list[UnappliedRecord]] = field(default_factory=list)
    truncated: list[dict[str, int]] = field(default_factory=list)
    swept: list[Swept] = field(default_factory=list)

    @property
    def written(self) -> int:
        """Rows and deletes that the stores accepted."""
        every = (count.changes for of in self.counts for count in of.values())
        return sum(applied.upserted + applied.deleted for applied in every)
