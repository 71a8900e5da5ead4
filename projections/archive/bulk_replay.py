"""BulkReplay: gives an engine the part of a replay that it does in bulk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from projections.archive.bulk import BulkFold, BulkPart, BulkTopics
from projections.archive.progress import Meter, stopped
from projections.changes.row_change import Applied

if TYPE_CHECKING:
    from projections.archive.bulk import BulkEngine, Filled
    from projections.archive.fold import FoldedRows, Integers
    from projections.archive.lanes import ReplayLane
    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import FoldKey, RecordFilter
    from projections.archive.task import ReplayOptions
    from projections.common.throttle import Throttle


@dataclass(frozen=True, slots=True)
class BulkReplay:
    """The bulk work of one replay.

    Attributes:
        scan: The archive.
        taken: The filter of records.
        options: How the replay runs.
        meter: Counts what is read and written.
        throttle: Says whether the replay has been stopped.
    """

    scan: ArchiveScan
    taken: RecordFilter
    options: ReplayOptions
    meter: Meter
    throttle: Throttle

    def fold(self, key: FoldKey, engine: BulkEngine) -> FoldedRows:
        """Finds the newest record of each key of a topic."""
        self.meter.rows += self.scan.rows
        work = BulkFold(self.scan, *key, self.taken, self.options.share)
        folded = engine.fold(work, self._looked_at)
        folded.look_up = lambda keys: engine.look_up(
            replace(work, named=frozenset(keys)), self._looked_at
        )
        return folded

    def fill(
        self, lane: ReplayLane, topic: str, rows: Integers, number: int, engine: BulkEngine
    ) -> Integers:
        """Writes newest records.

        Args:
            lane: The only view of its lane.
            topic: The topic of the records.
            rows: The numbers of the records, rising.
            number: Number of the commit.
            engine: Writes them.

        Returns:
            The numbers of the records that were not written, rising.
        """
        (plan,) = lane.plans
        part = BulkPart(
            mark=self._mark,
            share=self.options.share,
            held=lane.target.held,
            topic=topic,
            rows=rows,
            number=number,
        )
        return self._counted(lane, len(rows), engine.fill(self.scan, plan, part, self._delivered))

    def fill_from_all(
        self, lane: ReplayLane, first: str, records: dict[str, int], engine: BulkEngine
    ) -> Integers:
        """Writes a view from all records of its topics.

        Args:
            lane: The only view of its lane.
            first: The topic at which the replay is; it has skipped those before.
            records: The number of records of each topic of the view, in their order.
            engine: Writes them.

        Returns:
            The numbers of the records that were not written, rising.
        """
        (plan,) = lane.plans
        topics = tuple(records)
        work = BulkTopics(
            mark=self._mark,
            share=self.options.share,
            held=lane.target.held,
            topics=topics,
            taken=self.taken,
            records=sum(records[topic] for topic in topics[topics.index(first) :]),
            digest="" if plan.events is None else plan.events.form.code,
        )
        filled = engine.fill_from_all(self.scan, plan, work, self._delivered)
        return self._counted(lane, sum(records.values()), filled)

    @property
    def _mark(self) -> str:
        return f"headwater.replay.{self.scan.mark.version}.{self.scan.mark.files[:32]}"

    def _counted(self, lane: ReplayLane, records: int, filled: Filled) -> Integers:
        """Counts the records that were written; returns the numbers of the others."""
        (plan,) = lane.plans
        count, written = lane.delivery.counts[plan.name], records - len(filled.left)
        count.records += written
        count.filtered += filled.filtered
        count.applied += written - filled.filtered
        count.changes += Applied(filled.upserted, filled.deleted)
        self.meter.to_deliver += len(filled.left)
        return filled.left

    def _looked_at(self, rows: int) -> None:
        self.meter.looked_at += rows
        self._report()

    def _delivered(self, records: int) -> None:
        self.meter.delivered += records
        self._report()

    def _report(self) -> None:
        """Reports the progress; the tasks pause themselves."""
        self.meter.report()
        self.throttle.restart()
        if self.throttle.stopped:
            raise stopped()
