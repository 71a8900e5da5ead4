"""Time travel: the rows of a view as they were at an earlier moment, told by the archive.

They are made as any replay makes them, of the records of transactions that had committed by then,
into a table of their own. A table that was filled so far can be carried on to a later moment: its
two versions are then the view at two times.

A read of a table counts as a whole, once it was at its end: what it has not found is gone then, and
of a table without a key its rows are in the place of those of before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdc.lsn import Lsn
from cdc.position import VERSION_LSN_BITS, ChangePosition
from projections.archive.commits import CLOCKS_APART_US, Commits, CommittedBy
from projections.archive.replay import replay
from projections.archive.scan import ArchiveScan
from projections.archive.task import ReplayOptions, ReplayTarget
from projections.changes import sweeps
from projections.common.table_pins import pinned
from projections.errors import MomentUnreadableError
from projections.stores.delta.sink import WarehouseSink

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from cdc.snapshot.reads import Read
    from projections.archive.commits import Moment, Reached
    from projections.changes.row_change import ReadSpan
    from projections.common.offsets import Offsets
    from projections.planning.view_plan import ViewPlan

_LSN: Final = (1 << VERSION_LSN_BITS) - 1


@dataclass(frozen=True, slots=True)
class Former:
    """Views as they were.

    Attributes:
        reached: The commit up to which everything is in them, and nothing later.
        tables: Folder of their tables, by name.
        versions: The version of each table that stands there.
    """

    reached: Reached
    tables: Path
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KnownReads:
    """What is known of an archive from elsewhere.

    Attributes:
        reads: Every whole read that is done, of all tables; without them, the first rows that were
            read of a table are taken for all of a whole read.
        archived: How far the archive says that it has had each partition; see `Archive.ends`.
    """

    reads: Sequence[Read] = ()
    archived: Offsets = field(default_factory=dict)


def former(
    archive: Path,
    plans: Iterable[ViewPlan],
    moment: Moment,
    tables: Path,
    known: KnownReads = KnownReads(),
) -> Former:
    """Makes views as they were at a moment.

    Args:
        archive: Folder of the archive.
        plans: The views: mirrors, histories, or views of events.
        moment: When.
        tables: Folder for their tables; it may have them as they were at an earlier moment.
        known: What is known of the archive.

    Returns:
        The commit that it came to, and where the rows are.

    Raises:
        MomentUnreadableError: The archive cannot tell.
        ArchiveMissingError: There is no archive.
        ArchiveIncompleteError: It lacks records that the views are made from.
    """
    plans = tuple(plans)
    every = ArchiveScan(archive, None)
    with pinned(archive, every.version):
        commits = Commits(every)
        reached = commits.reached(moment)
        floors = {plan.name: _floor(plan, commits, reached, known.reads) for plan in plans}
        sink = WarehouseSink(tables)
        done = replay(
            archive,
            [ReplayTarget(plans, lambda: sink)],
            ReplayOptions(
                archived=known.archived,
                version=every.version,
                taken=CommittedBy(reached, _last_reads(plans, floors)),
            ),
        )
    if done.waiting[0]:
        keys = {each.key for each in done.waiting[0]}
        raise MomentUnreadableError(
            "some rows cannot be told as they were", detail=f"{len(keys)} keys have bad records"
        )
    for plan in plans:
        if floor := floors[plan.name]:
            sink.sweep(plan, floor, _spans(plan, floor, known.reads))
    return Former(reached, tables, {plan.name: sink.version(plan) for plan in plans})


def _floor(plan: ViewPlan, commits: Commits, reached: Reached, reads: Sequence[Read]) -> int:
    """Version below which rows had gone by then: those that a whole read has not found.

    Raises:
        MomentUnreadableError: No read of the table was at its end by then.
    """
    epoch, found = reached.epoch, dict[str, int]()
    for topic in plan.topics:
        ended = {
            span.version & _LSN: commits.read_until_us(topic, epoch, span.version & _LSN)
            or span.until_us  # it has found no row
            for span in _reads_of({topic}, reads)
            if span.version >> VERSION_LSN_BITS == epoch
        }
        if not ended:
            first_us = commits.read_until_us(topic, epoch, None)
            if first_us is not None and first_us + CLOCKS_APART_US > reached.at_us:
                raise commits.too_early(epoch, first_us + CLOCKS_APART_US)
            continue
        done = [lsn for lsn, at_us in ended.items() if at_us + CLOCKS_APART_US <= reached.at_us]
        if not done:
            raise commits.too_early(epoch, min(ended.values()) + CLOCKS_APART_US)
        found[topic] = ChangePosition.of_read(epoch, Lsn(max(done))).version
    topics = [plan.topic] if plan.events is None else list(plan.topics)
    return min(found.get(topic, 0) for topic in topics)


def _spans(plan: ViewPlan, floor: int, reads: Sequence[Read]) -> list[ReadSpan]:
    """What a history is told of the whole reads that were at their end by then."""
    if plan.history is None:
        return []
    every = _reads_of(plan.topics, reads)
    return [span for span in every if span.version <= floor]


def _reads_of(topics: Collection[str], reads: Sequence[Read]) -> list[ReadSpan]:
    """What reads of some tables stand for, in the order of the log."""
    found = []
    for read in reads:
        if read.read_lsn is not None and read.topic in topics:
            begun = read.begun_at or read.asked_at
            place = ChangePosition.of_read(read.epoch, read.read_lsn)
            found.append(sweeps.span(place, begun, read.ended_at or begun))
    return sorted(found)


def _last_reads(plans: Iterable[ViewPlan], floors: Mapping[str, int]) -> dict[str, int]:
    """By topic of a table without a key, the newest read of which the rows count.

    Those of another one, that was not at its end, would be there beside them.
    """
    keyless = (plan for plan in plans if plan.append_only and floors[plan.name])
    return {topic: floors[plan.name] for plan in keyless for topic in plan.topics}
