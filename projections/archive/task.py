"""What a replay is asked for and what it came to: targets, options, where it goes on, figures."""

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
    from projections.changes.applier import Held, UnappliedRecord, ViewCount
    from projections.changes.row_change import ReadSpan
    from projections.changes.sink import Sink
    from projections.changes.sweeps import Sweep
    from projections.common.offsets import Offsets
    from projections.planning.view_plan import ViewPlan

CHANGES_PER_WRITE: Final = 100_000


class Had(msgspec.Struct, frozen=True):
    """What views have of an archive already, so that only what came since is replayed: a lap.

    Attributes:
        ends: Topic, partition and offset after the last record that they have; of others, none.
        archive: Version of the archive that has no other records, and what tells its files; None
            where all files are to be looked into.
    """

    ends: list[tuple[str, int, int]]
    archive: tuple[int, str] | None = None

    @property
    def offsets(self) -> Offsets:
        """Offset after the last record that they have, by topic and partition."""
        return {(topic, partition): end for topic, partition, end in self.ends}

    @property
    def mark(self) -> ArchiveMark | None:
        """The version of the archive whose files need not be looked into."""
        return None if self.archive is None else ArchiveMark(*self.archive)


class ReplayState(msgspec.Struct, frozen=True):
    """Where a replay goes on; small, and of plain values.

    Attributes:
        archive_version: Version of the archive that it reads.
        ends: Topic, partition and offset after the last record that it takes.
        step: The step that it is at.
        part: The part of that step that comes next.
        had: Of a lap, what was there before it.
        bulk: Whether its steps are those of a replay with a bulk engine.
    """

    archive_version: int
    ends: list[tuple[str, int, int]]
    step: int = 0
    part: int = 0
    had: Had | None = None
    bulk: bool = False

    def to_json(self) -> bytes:
        """Returns it as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> ReplayState:
        """Reads it back."""
        return msgspec.json.decode(text, type=cls)


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """Views of one store that are filled.

    Attributes:
        plans: The views.
        open_sink: Opens the store; the replay closes it.
        held: What waits of them already, by view.
        set_aside: Is handed what cannot be written, and how far views were truncated, by name; once
            it returns, that is safe. Without it, the caller finds both in `ReplayResult`.
        changes_per_write: Changes of a topic after which they are written.
        bulk: Fills its tables with many tasks; None where they are written record by record.
    """

    plans: tuple[ViewPlan, ...]
    open_sink: Callable[[], Sink]
    held: Mapping[str, Held] = field(default_factory=dict)
    set_aside: Callable[[Sequence[UnappliedRecord], Mapping[str, int]], None] | None = None
    changes_per_write: int = CHANGES_PER_WRITE
    bulk: BulkEngine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a replay is done.

    Attributes:
        through: Offsets below which records are taken, by topic and partition; all of those that
            are not named.
        taken: Which records are taken, if offsets do not determine it.
        had: Of a lap, what the views have already; without `taken`.
        version: Version of the archive; None for the newest.
        archived: How far the archive says that it has had each partition; see `Archive.ends`.
        whole: The newest whole read of each table that is done, by topic. Where the archive lacks
            the first records it may be complete since then; and rows that it has not found go.
        spans: What a history is told of the whole reads of its table.
        share: Of the time, how much the replay takes at most, above 0 to 1.
        stopped: Set to end it; it is looked at several times a second, but for a write under way.
        progress: Is told how far it is, twice a second.
        note: Is told where it would go on; to be kept by whoever wants to go on after a kill.
        resume: Where it goes on.
        scratch: Folder for what has to be sorted; None for the system's own.
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
"""All of the archive, at once."""


@dataclass(frozen=True, slots=True)
class Swept:
    """A view from which rows were removed that a whole read has not found.

    Attributes:
        target: Number of the target.
        view: The view.
        sweep: Up to which version, as the job notes it.
        removed: How many rows.
    """

    target: int
    view: str
    sweep: Sweep
    removed: int


@dataclass(slots=True)
class ReplayResult:
    """What a replay came to.

    Attributes:
        ends: Offset after the last record that was taken, by topic and partition; of a lap, where
            none was, as they were before.
        archive: The version of the archive that was read.
        records: Records of the topics in the archive, as far as they were to be taken.
        counts: For each target, what became of the records that were delivered, by view.
        waiting: For each target, what could not be written, if no one else was handed it.
        truncated: For each target, how far views were truncated, by name.
        swept: What whole reads have allowed to be removed.
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
        """Rows and deletes that the stores took."""
        every = (count.changes for of in self.counts for count in of.values())
        return sum(applied.upserted + applied.deleted for applied in every)
