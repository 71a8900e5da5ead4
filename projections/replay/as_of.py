"""Time travel: the rows of a mirror as they were at an earlier moment, told by the archive.

They are made as any replay makes them, of the records of transactions that had committed by then,
into a table of their own. A table that was filled so far can be carried on to a later moment: its
two versions are then the view at two times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdc.lsn import Lsn
from cdc.position import ChangePosition
from projections.archive_pin import pinned
from projections.errors import MomentUnreadableError
from projections.replay.archive_scan import ArchiveScan
from projections.replay.commits import CLOCKS_APART_US, Commits, CommittedBy
from projections.replay.replay import replay
from projections.replay.task import ReplayOptions, Target
from projections.sinks.table import TableSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from cdc.snapshot.reads import Read
    from projections.frontier import Offsets
    from projections.plan import ViewPlan
    from projections.replay.commits import Moment, Reached


@dataclass(frozen=True, slots=True)
class Former:
    """Mirrors as they were.

    Attributes:
        reached: The commit up to which everything is in them, and nothing later.
        tables: Folder of their tables, by name.
        versions: The version of each table that stands there.
    """

    reached: Reached
    tables: Path
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Known:
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
    known: Known = Known(),
) -> Former:
    """Makes mirrors as they were at a moment.

    Args:
        archive: Folder of the archive.
        plans: The mirrors.
        moment: When.
        tables: Folder for their tables; it may have them as they were at an earlier moment.
        known: What is known of the archive.

    Returns:
        The commit that it came to, and where the rows are.

    Raises:
        MomentUnreadableError: The archive cannot tell; or a view is no mirror of a table with a
            key.
        ArchiveMissingError: There is no archive.
        ArchiveIncompleteError: It lacks records that the views are made from.
    """
    plans = tuple(plans)
    for plan in plans:
        if plan.events is not None or plan.history is not None or plan.append_only:
            raise MomentUnreadableError(
                f"view {plan.name} is no mirror of a table with a key",
                hint="a history is asked by its columns valid_from and valid_to",
            )
    every = ArchiveScan(archive, None)
    with pinned(archive, every.version):
        commits = Commits(every)
        reached = commits.reached(moment)
        floors = {plan.name: _floor(plan, commits, reached, known.reads) for plan in plans}
        sink = TableSink(tables)
        done = replay(
            archive,
            [Target(plans, lambda: sink)],
            ReplayOptions(
                archived=known.archived,
                version=every.version,
                taken=CommittedBy(reached),
            ),
        )
    if done.waiting[0]:
        keys = {each.key for each in done.waiting[0]}
        raise MomentUnreadableError(
            "some rows cannot be told as they were", detail=f"{len(keys)} keys have bad records"
        )
    for plan in plans:
        if floors[plan.name]:
            sink.sweep(plan, floors[plan.name])
    return Former(reached, tables, {plan.name: sink.version(plan) for plan in plans})


def _floor(plan: ViewPlan, commits: Commits, reached: Reached, reads: Sequence[Read]) -> int:
    """Version below which rows had gone by then: those that a whole read has not found.

    Raises:
        MomentUnreadableError: No read of the table was at its end by then.
    """
    epoch, found = reached.epoch, 0
    for topic in plan.topics:
        own = [
            read.read_lsn.value
            for read in reads
            if read.table.topic(plan.source) == topic and read.epoch == epoch and read.read_lsn
        ]
        ended = {lsn: commits.read_until_us(topic, epoch, lsn) or 0 for lsn in own}
        if not own:
            first_us = commits.read_until_us(topic, epoch, None)
            if first_us is not None and first_us + CLOCKS_APART_US > reached.at_us:
                raise commits.too_early(epoch, first_us + CLOCKS_APART_US)
            continue
        done = [lsn for lsn, at_us in ended.items() if at_us + CLOCKS_APART_US <= reached.at_us]
        if not done:
            raise commits.too_early(epoch, min(ended.values()) + CLOCKS_APART_US)
        if topic == plan.topic:
            found = ChangePosition.of_read(epoch, Lsn(max(done))).version
    return found
