"""Replay: fills views from the archive of their source, in bulk.

The result is the same as that of live delivery. A mirror needs only the newest record of each key,
so only that one is decoded and written. Keys that need more than one record, and views that need
every record, are delivered as in live delivery, in the topics' order.

The stores guard these writes like all others, so a part may be written twice: a killed replay
resumes at its current part. The live stream continues from `ReplayResult.ends`, or from an earlier
offset.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.snapshot.reads import WholeRead
from projections.archive import completeness
from projections.archive.bulk_replay import BulkReplay
from projections.archive.lanes import (
    OpenedStore,
    ReplayLane,
    ReplayStep,
    folded,
    goes_in_bulk,
    in_turn,
    steps_of,
)
from projections.archive.ordered import OrderedRecords
from projections.archive.progress import Meter, rest
from projections.archive.records import COLUMNS, records
from projections.archive.scan import ArchiveScan
from projections.archive.survey import ArchiveSurvey, RecordFilter, flags
from projections.archive.task import (
    STEPS,
    USUAL,
    Had,
    ReplayOptions,
    ReplayResult,
    ReplayState,
    ReplayTarget,
    Swept,
)
from projections.changes import sweeps
from projections.common.table_pins import pinned
from projections.common.throttle import Throttle
from projections.errors import ArchiveMissingError, ReplayError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from projections.archive.bulk import BulkEngine
    from projections.archive.fold import Flags, Fold, FoldedRows, Integers
    from projections.archive.ordered import Choose
    from projections.archive.survey import FoldKey, TopicSurvey
    from projections.changes.task_outcome import UnappliedRecord, ViewCount
    from projections.common.offsets import Offsets
    from projections.planning.view_plan import ViewPlan

PART_RECORDS: Final = 100_000
"""Records after which everything is written and the place to continue is recorded."""

BULK_RECORDS: Final = 4_000_000
"""Records that a bulk engine writes in one commit."""

_TAKEN_AT_ONCE: Final = 8_192


def replay(
    archive: Path, targets: Iterable[ReplayTarget], options: ReplayOptions = USUAL
) -> ReplayResult:
    """Fills views from the archive.

    Maintenance keeps the version of the archive that is read until the replay has ended.

    Args:
        archive: Folder of the archive.
        targets: The stores to fill.
        options: How the replay runs.

    Returns:
        The result.

    Raises:
        ArchiveMissingError: There is no archive, or its files are gone.
        ArchiveIncompleteError: It lacks records of the views.
        ReplayStoppedError: The caller stopped it.
        SinkError: A store refuses everything or cannot be reached.
        ViewHaltedError: A view has to be paused.
    """
    targets = list(targets)
    plans = [plan for target in targets for plan in target.plans]
    topics = {topic for plan in plans for topic in plan.topics}
    scan, state, had = _opened(archive, topics, options)
    with pinned(archive, scan.version):
        run = _Run(archive, scan, targets, options, state, had)
        try:
            return run.run()
        except FileNotFoundError:
            raise ArchiveMissingError(
                "files of the archive are gone",
                detail=f"version {scan.version}",
                hint="begin the replay again",
            ) from None
        finally:
            run.close()


def _opened(
    archive: Path, topics: set[str], options: ReplayOptions
) -> tuple[ArchiveScan, ReplayState | None, Had | None]:
    """Opens the archive's version of an interrupted replay, or the newest if that is gone."""
    state, had = options.resume, options.had
    if state is not None:
        try:
            beyond = None if state.had is None else state.had.mark
            scan = ArchiveScan(archive, topics, version=state.archive_version, beyond=beyond)
            if scan.rows >= 0:  # opens every file
                return scan, state, state.had
        except (ArchiveMissingError, FileNotFoundError):
            pass  # what was written stays, and may be written again
    if had is not None and had.mark is not None:
        try:
            scan = ArchiveScan(archive, topics, version=options.version, beyond=had.mark)
        except ArchiveMissingError:  # it is unknown which files have no new records
            had = Had(had.ends)
        else:
            return scan, None, had
    return ArchiveScan(archive, topics, version=options.version), None, had


class _Run:
    """One run of a replay."""

    def __init__(  # noqa: PLR0913, PLR0917  # what a run is made of
        self,
        archive: Path,
        scan: ArchiveScan,
        targets: list[ReplayTarget],
        options: ReplayOptions,
        state: ReplayState | None,
        had: Had | None,
    ) -> None:
        self._archive = archive
        self._had = had
        self._scan = scan
        self._targets = targets
        self._options = options
        self._state = state
        self._sinks = [OpenedStore(target) for target in targets]
        self._lanes = list(self._made_lanes())
        self._in_bulk = goes_in_bulk(self._lanes, state, had)
        if state is not None and (state.form != STEPS or (state.bulk and not self._in_bulk)):
            self._in_bulk = False
            # rows already written have versions, so all records may be written again, one by one
            state = msgspec.structs.replace(state, step=0, part=0, bulk=False, form=STEPS)
            self._state = state
        self._steps = list(steps_of(self._lanes, in_bulk=self._in_bulk))
        self._throttle = Throttle(options.share, options.stopped, error=ReplayError)
        self._meter = Meter(options.progress)
        through = options.through
        if state is not None:
            through = {(topic, partition): end for topic, partition, end in state.ends}
        self._through = through
        self._taken = options.taken or RecordFilter(
            through, since=None if had is None else had.offsets
        )
        self._bulk = BulkReplay(scan, self._taken, options, self._meter, self._throttle)
        self._undecided: dict[FoldKey, set[str]] = {}
        self._unwritten = defaultdict[ReplayLane, "Integers"](lambda: np.empty(0, np.int64))
        self._aside: list[list[UnappliedRecord]] = [[] for _ in targets]
        self._truncated: list[dict[str, int]] = [{} for _ in targets]

    def run(self) -> ReplayResult:
        scan, meter = self._scan, self._meter
        meter.rows += scan.rows
        folds = {step.fold for step in self._steps if step.fold is not None}
        bulk = {step.fold: step.bulk for step in self._steps if step.fold and step.bulk}
        self._survey = survey = ArchiveSurvey(scan, folds, self._taken, self._keeping(), bulk)
        survey.run(self._looked_at)
        for topic, topic_survey in survey.topics.items():
            self._check(topic, topic_survey)
        survey.adopt({key: self._bulk.fold(key, engine) for key, engine in bulk.items()})
        meter.to_deliver = sum(map(self._records_of, self._steps))
        for target, sink in zip(self._targets, self._sinks, strict=True):
            for plan in target.plans:
                sink.get().prepare(plan)
        ends = survey.ends() if self._state is None else self._ends_of(self._state)
        if self._had is not None and self._state is None:
            ends = self._had.offsets | ends
        begin = self._state or ReplayState(
            scan.version,
            [(*p, end) for p, end in ends.items()],
            had=self._had,
            bulk=self._in_bulk,
            form=STEPS,
        )
        for number, step in enumerate(self._steps):
            if number < begin.step:
                meter.skip(self._records_of(step))
                continue
            self._do(step, msgspec.structs.replace(begin, step=number, part=0), begin)
        meter.report(now=True)
        return ReplayResult(
            ends,
            scan.mark,
            sum(topic_survey.rows for topic_survey in survey.topics.values()),
            self._counts(),
            self._aside,
            self._truncated,
            self._swept(ends),
        )

    def _check(self, topic: str, survey: TopicSurvey) -> None:
        archived = self._options.archived
        if self._had is None:
            completeness.check(self._scan, topic, survey, archived, self._options.whole)
            return
        since = {number: end for (name, number), end in self._had.offsets.items() if name == topic}
        completeness.check_since(self._archive, self._scan, topic, survey, archived, since)

    def _looked_at(self, rows: int) -> None:
        self._meter.looked_at += rows
        self._meter.report()
        rest(self._throttle)

    def close(self) -> None:
        for lane in self._lanes:
            lane.delivery.close()
        for sink in self._sinks:
            sink.close()

    def _do(self, step: ReplayStep, at: ReplayState, begin: ReplayState) -> None:
        first = begin.part if begin.step == at.step else 0
        self._options.note(self._here(step, at, first))
        for number, part in enumerate(self._parts(step, first), start=first):
            self._take(step, part)
            self._options.note(self._here(step, at, number + 1))

    def _here(self, step: ReplayStep, at: ReplayState, part: int) -> ReplayState:
        """Returns where a replay that ends at this point continues."""
        if not step.chains and any(len(self._unwritten.get(lane, ())) for lane in step.lanes):
            return msgspec.structs.replace(at, part=0)  # the unwritten rows must be collected again
        if step.fold is None or not self._undecided.get(step.fold):
            return msgspec.structs.replace(at, part=part)
        # the undecided keys are not stored: they must be collected again
        first = next(n for n, each in enumerate(self._steps) if each.fold == step.fold)
        return msgspec.structs.replace(at, step=first, part=0)

    def _parts(self, step: ReplayStep, first: int) -> Iterator[Iterable[pa.RecordBatch | pa.Table]]:
        """Yields the parts of a step from one on, each a number of batches."""
        if step.fold is None and step.bulk is not None:
            if not first:  # otherwise the step was completed
                yield from self._from_all(step, step.bulk)
            return
        if step.fold is None or step.chains:
            ordered = self._ordered(step)
            for number, part in enumerate(ordered):
                if number >= first:
                    yield [part]
                else:
                    self._meter.skip(part.num_rows)
                    rest(self._throttle)
            return
        fold = self._survey.folds[step.fold]
        if fold.truncate_row >= 0 and not first:
            yield self._chosen(np.array([fold.truncate_row]))
            first = 1
        begun = int(fold.truncate_row >= 0)
        rows = fold.rows(fold.chained())
        at_once = PART_RECORDS if step.bulk is None else BULK_RECORDS
        self._meter.skip(min(len(rows), max(first - begun, 0) * at_once))
        for number in range(max(first - begun, 0), -(-len(rows) // at_once)):
            part = rows[number * at_once : (number + 1) * at_once]
            if step.bulk is None:
                yield self._chosen(part)
                continue
            (lane,) = step.lanes
            left = self._bulk.fill(lane, step.topic, part, number + 1, step.bulk)
            self._unwritten[lane] = np.concatenate([self._unwritten[lane], left])
            self._count_written()
            yield ()
        yield from self._unwritten_of(step)

    def _unwritten_of(self, step: ReplayStep) -> Iterator[Iterable[pa.RecordBatch]]:
        """Yields the records that were not written in bulk, after all commits in bulk.

        A commit in bulk reads no existing row, so there must be none yet under another form of
        one of its keys.
        """
        for rows in [self._unwritten[lane] for lane in step.lanes]:
            for start in range(0, len(rows), PART_RECORDS):
                yield self._chosen(rows[start : start + PART_RECORDS])

    def _from_all(
        self, step: ReplayStep, engine: BulkEngine
    ) -> Iterator[Iterable[pa.RecordBatch | pa.Table]]:
        """Fills a view in bulk with its first topic; yields this topic's unwritten records.

        A row may have records in several topics, so the engine reads all topics together. The
        records that it does not write are delivered topic by topic, as without an engine.
        """
        (lane,) = step.lanes
        if lane not in self._unwritten:
            records = {topic: self._survey.topics[topic].rows for topic in in_turn(lane.plans)}
            self._unwritten[lane] = self._bulk.fill_from_all(lane, step.topic, records, engine)
            self._count_written()
        unwritten = self._unwritten[lane]
        yield ()
        if len(unwritten):
            yield from ([p] for p in self._in_order(step, lambda _, rows: np.isin(rows, unwritten)))

    def _chosen(self, rows: Integers) -> Iterator[pa.RecordBatch]:
        return (batch for _, batch in self._scan.chosen(COLUMNS, rows))

    def _ordered(self, step: ReplayStep) -> Iterator[pa.Table]:
        choose = self._every(step.topic)
        if step.fold is not None:
            fold = self._survey.folds[step.fold]
            keys = fold.chained() | self._undecided.get(step.fold, set())
            if not keys and not fold.loose_rows:
                return
            choose = self._of_keys(step.topic, keys, fold)
        yield from self._in_order(step, choose)

    def _in_order(self, step: ReplayStep, choose: Choose) -> Iterator[pa.Table]:
        survey, scratch = self._survey.topics[step.topic], self._options.scratch
        chosen = OrderedRecords(self._scan, step.topic, survey, choose, scratch, PART_RECORDS)
        yield from chosen.parts()

    def _every(self, topic: str) -> Choose:
        taken = self._taken
        return lambda batch, _: taken.there(topic, batch)

    def _of_keys(self, topic: str, keys: set[str], fold: Fold | FoldedRows) -> Choose:
        taken = self._taken
        names = pa.array(sorted(keys), pa.string())
        loose = np.array(sorted(fold.loose_rows), np.int64)

        def chosen(batch: pa.RecordBatch, rows: Integers) -> Flags:
            wanted = flags(pc.is_in(batch.column("key"), value_set=names)) | np.isin(rows, loose)
            if fold.truncated:
                wanted |= rows == fold.truncate_row
            # other keys may have had these rows after the records that the filter accepts
            return wanted & taken.there(topic, batch)

        return chosen

    def _take(self, step: ReplayStep, part: Iterable[pa.RecordBatch | pa.Table]) -> None:
        before = [lane.filtered for lane in step.lanes]
        keys: list[pa.Array] = []
        for batch in part:
            for start in range(0, batch.num_rows, _TAKEN_AT_ONCE):
                piece = _whole(batch.slice(start, _TAKEN_AT_ONCE))
                made = records(piece)
                for lane in step.lanes:
                    lane.delivery.take(step.topic, made)
                keys.append(piece.column("key"))
                self._meter.delivered += piece.num_rows
                self._meter.report()
                rest(self._throttle)
        for lane in step.lanes:
            lane.delivery.finish()
            self._set_aside(lane)
        self._count_written()
        passed_over = before != [lane.filtered for lane in step.lanes]
        if step.fold is not None and not step.chains and passed_over:
            # the newest record of the key does not count: its other records decide
            undecided = self._undecided.setdefault(step.fold, set())
            undecided.update(chain.from_iterable(each.to_pylist() for each in keys))
        rest(self._throttle)

    def _count_written(self) -> None:
        self._meter.written = sum(lane.written for lane in self._lanes)

    def _set_aside(self, lane: ReplayLane) -> None:
        delivery, target = lane.delivery, lane.target
        if delivery.waiting or delivery.truncated:
            if target.set_aside is not None:
                target.set_aside(list(delivery.waiting), dict(delivery.truncated))
            else:
                self._aside[lane.number] += delivery.waiting
            self._truncated[lane.number] |= delivery.truncated
        delivery.waiting.clear()
        delivery.truncated.clear()
        for count in delivery.counts.values():
            count.lags_us.clear()

    def _made_lanes(self) -> Iterator[ReplayLane]:
        for number, (target, sink) in enumerate(zip(self._targets, self._sinks, strict=True)):
            groups: dict[tuple[bool, int], list[ViewPlan]] = {}
            for plan in target.plans:
                alone = folded(plan)
                groups.setdefault((alone, plan.left_to_read if alone else 0), []).append(plan)
            for group in groups.values():
                yield ReplayLane(number, target, group, sink)

    def _keeping(self) -> set[str]:
        """Returns the topics of mirrors whose records may omit unchanged values."""
        return {step.topic for step in self._steps if step.fold is not None}

    def _records_of(self, step: ReplayStep) -> int:
        if step.fold is None:
            return self._survey.topics[step.topic].rows
        if step.chains:
            return 0  # few, and unknown in advance
        fold = self._survey.folds[step.fold]
        return len(fold.rows(fold.chained()))

    def _counts(self) -> list[dict[str, ViewCount]]:
        counts: list[dict[str, ViewCount]] = [{} for _ in self._targets]
        for lane in self._lanes:
            counts[lane.number] |= lane.delivery.counts
        return counts

    def _swept(self, ends: Offsets) -> list[Swept]:
        """Removes rows that the newest snapshots do not have."""
        whole = {
            topic: WholeRead(read.id, read.epoch, read.read_lsn, read.end_offsets or {})
            for topic, read in self._options.whole.items()
            if read.read_lsn is not None
        }
        swept = []
        for number, (target, sink) in enumerate(zip(self._targets, self._sinks, strict=True)):
            for plan in target.plans:
                sweep = None if plan.behind else sweeps.due(plan, whole)
                if sweep is not None and sweep.covered_by(ends):
                    removed = sink.get().sweep(plan, sweep.below_version, self._options.spans)
                    swept.append(Swept(number, plan.name, sweep, removed))
        return swept

    @staticmethod
    def _ends_of(state: ReplayState) -> Offsets:
        return {(topic, partition): end for topic, partition, end in state.ends}


def _whole(part: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    return part.combine_chunks().to_batches()[0] if isinstance(part, pa.Table) else part
