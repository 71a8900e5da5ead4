"""Time travel: the rows of a view as they were at an earlier moment, from the archive.

The records of transactions that had committed by that moment are replayed into a separate table. A
table filled this way can be continued to a later moment: its two versions are then the view at two
times.

A snapshot of a table counts only if it had ended by then: rows that it lacks no longer existed, and
for a table without a key its rows replace the earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cdc.lsn import Lsn
from cdc.position import VERSION_LSN_BITS, ChangePosition
from projections.archive.commits import CLOCKS_APART_US, Commits, CommittedBy
from projections.archive.rebuilding.engine import TaskEngine
from projections.archive.rebuilding.own_tasks import OwnTasks
from projections.archive.replay import replay
from projections.archive.scan import ArchiveScan
from projections.archive.task import ReplayOptions, ReplayTarget
from projections.changes import sweeps
from projections.common.table_pins import pinned
from projections.definition.views import Store
from projections.errors import BulkLostError, MomentUnreadableError
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
    """The rows of views at an earlier moment.

    Attributes:
        reached: The commit through which they are complete, without any later change.
        tables: Folder of their tables, by name.
        versions: The version of each table.
    """

    reached: Reached
    tables: Path
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KnownReads:
    """What other sources know about an archive.

    Attributes:
        reads: Every finished snapshot, of all tables; without them, the first rows read of a table
            count as a complete snapshot.
        archived: The archive's recorded end of each partition; see `Archive.ends`.
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
    """Computes views as they were at a moment.

    Args:
        archive: Folder of the archive.
        plans: The views: mirrors, histories, or views of events.
        moment: The moment.
        tables: Folder for their tables; it may contain the tables of an earlier moment.
        known: What other sources know about the archive.

    Returns:
        The commit, and the tables.

    Raises:
        MomentUnreadableError: The archive does not cover the moment.
        ArchiveMissingError: There is no archive.
        ArchiveIncompleteError: It lacks records of the views.
    """
    plans = tuple(plans)
    every = ArchiveScan(archive, None)
    with pinned(archive, every.version):
        commits = Commits(every)
        reached = commits.reached(moment)
        floors = {plan.name: _floor(plan, commits, reached, known.reads) for plan in plans}
        sink = WarehouseSink(tables)
        options = ReplayOptions(
            archived=known.archived,
            version=every.version,
            taken=CommittedBy(reached, _last_reads(plans, floors)),
        )
        targets = [ReplayTarget((plan,), lambda: sink) for plan in map(_of_table, plans)]
        try:
            result = replay(archive, [_in_tasks(each, tables) for each in targets], options)
        except BulkLostError:  # rows that are there are guarded by their versions
            result = replay(archive, targets, options)
    keys = {(each.view, each.key) for waiting in result.waiting for each in waiting}
    if keys:
        raise MomentUnreadableError(
            "the former state of some rows is unknown", detail=f"{len(keys)} keys have bad records"
        )
    for plan in plans:
        if floor := floors[plan.name]:
            sink.sweep(plan, floor, _spans(plan, floor, known.reads))
    return Former(reached, tables, {plan.name: sink.version(plan) for plan in plans})


def _of_table(plan: ViewPlan) -> ViewPlan:
    return replace(plan, to=frozenset({Store.TABLE}))


def _in_tasks(target: ReplayTarget, tables: Path) -> ReplayTarget:
    """Has a table filled in tasks of this process."""
    (plan,) = target.plans
    return replace(target, bulk=TaskEngine(OwnTasks(), tables, plan.name))


def _floor(plan: ViewPlan, commits: Commits, reached: Reached, reads: Sequence[Read]) -> int:
    """Returns the version below which rows no longer existed, since a snapshot lacks them.

    Raises:
        MomentUnreadableError: No snapshot of the table had ended by then.
    """
    epoch, versions = reached.epoch, dict[str, int]()
    for topic in plan.topics:
        ended = {
            span.version & _LSN: commits.read_until_us(topic, epoch, span.version & _LSN)
            or span.until_us  # the snapshot found no row
            for span in _reads_of({topic}, reads)
            if span.version >> VERSION_LSN_BITS == epoch
        }
        if not ended:
            first_us = commits.read_until_us(topic, epoch, None)
            if first_us is not None and first_us + CLOCKS_APART_US > reached.at_us:
                raise commits.too_early(epoch, first_us + CLOCKS_APART_US)
            continue
        ended_lsns = [
            lsn for lsn, at_us in ended.items() if at_us + CLOCKS_APART_US <= reached.at_us
        ]
        if not ended_lsns:
            raise commits.too_early(epoch, min(ended.values()) + CLOCKS_APART_US)
        versions[topic] = ChangePosition.of_read(epoch, Lsn(max(ended_lsns))).version
    topics = [plan.topic] if plan.events is None else list(plan.topics)
    return min(versions.get(topic, 0) for topic in topics)


def _spans(plan: ViewPlan, floor: int, reads: Sequence[Read]) -> list[ReadSpan]:
    """Returns the snapshots that had ended by then, for a history."""
    if plan.history is None:
        return []
    every = _reads_of(plan.topics, reads)
    return [span for span in every if span.version <= floor]


def _reads_of(topics: Collection[str], reads: Sequence[Read]) -> list[ReadSpan]:
    """Returns the spans of reads of some tables, in the order of the log."""
    spans = []
    for read in reads:
        if read.read_lsn is not None and read.topic in topics:
            begun = read.begun_at or read.asked_at
            place = ChangePosition.of_read(read.epoch, read.read_lsn)
            spans.append(sweeps.span(place, begun, read.ended_at or begun))
    return sorted(spans)


def _last_reads(plans: Iterable[ViewPlan], floors: Mapping[str, int]) -> dict[str, int]:
    """Returns, for each topic of a table without a key, the newest read whose rows count.

    Rows of a later read that had not ended would duplicate them.
    """
    keyless = (plan for plan in plans if plan.append_only and floors[plan.name])
    return {topic: floors[plan.name] for plan in keyless for topic in plan.topics}
