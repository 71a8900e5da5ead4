"""The reader: runs the requested snapshots of a source, several ranges in parallel.

One thread schedules the work and records the progress of each range; a few workers read and send
rows. The progress is recorded only after Kafka has acknowledged the rows. If the process is killed
at any moment, the next reader therefore sends at most the current chunks again.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog

from cdc.broker.producing.producer import load
from cdc.errors import CdcError
from cdc.postgres import session
from cdc.snapshot import failure, reads
from cdc.snapshot.errors import (
    ReadDelayedError,
    SourceWentBackError,
    TableChangedError,
    WritersInTheWayError,
)
from cdc.snapshot.progress import SnapshotProgress
from cdc.snapshot.read_point import ReadPoint
from cdc.snapshot.reading import SnapshotRun, SnapshotStage
from cdc.snapshot.table_facts import look
from cdc.snapshot.worker import SnapshotStart, Worker

if TYPE_CHECKING:
    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.snapshot.chunk import Chunk
    from cdc.snapshot.table_facts import TableFacts

DEADLINE_S: Final = 60.0
"""How long `run` retries failures and waits for writers."""

IDLE_S: Final = 0.5
"""Interval at which new and cancelled requests are looked up."""

_TICK_S: Final = 0.02
_SAY_WAITING_S: Final = 1.0

_log = structlog.get_logger(__name__)


def run(
    spec: CaptureSpec, stop: threading.Event | None = None, deadline_s: float = DEADLINE_S
) -> int:
    """Runs all open snapshots of a source; returns the number of completed ones.

    Snapshots that another process runs are left to that process.

    Args:
        spec: The source.
        stop: Stops it at once; the recorded progress remains.
        deadline_s: How long to retry temporary failures, counted from the start.

    Raises:
        SnapshotError: A table cannot be read; all other tables were.
        CdcError: Postgres or Kafka does not answer.
    """
    with _Reader(spec, stop or threading.Event()) as reader:
        return reader.run(deadline_s)


def keep_reading(spec: CaptureSpec, stop: threading.Event | None = None) -> None:
    """Runs requested snapshots, current and future ones, until stopped.

    Failures are retried: an unavailable database or broker only delays a snapshot.
    """
    stop = stop or threading.Event()
    while not stop.is_set():
        try:
            with _Reader(spec, stop) as reader:
                reader.run(None)
        except Exception as error:  # noqa: BLE001  # the edge of the thread
            code = getattr(error, "code", None) or getattr(error, "sqlstate", None)
            _log.warning("tables are not read", code=code, error=type(error).__name__)
            stop.wait(IDLE_S)


class _Reader:
    def __init__(self, spec: CaptureSpec, stop: threading.Event) -> None:
        load()
        self._connection: Connection[Any] = session.connect(spec.dsn)
        epoch = reads.epoch_of(self._connection, spec.name, spec.epoch)
        self._spec = replace(spec, epoch=epoch)
        self._stop = stop
        self._pool = ThreadPoolExecutor(spec.snapshot_workers, thread_name_prefix="snapshot")
        self._mine = threading.local()
        self._workers: list[Worker] = []
        self._readings: dict[int, SnapshotRun] = {}
        self._work: dict[Future[Any], tuple[SnapshotRun, int | None]] = {}
        self._looked_at = 0.0
        self._done = 0
        self._failure: CdcError | None = None

    def __enter__(self) -> _Reader:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._workers):
            worker.cancel()
        self._pool.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._connection.close()

    def run(self, deadline_s: float | None) -> int:
        """Runs snapshots until none is open; without a deadline, until stopped."""
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        while not self._stop.is_set():
            self._look()
            for reading in list(self._readings.values()):
                if reading.due and not reading.busy:
                    self._step(reading)
            self._hand_out()
            if deadline is not None and not self._readings:
                break
            if deadline is not None and not self._work and time.monotonic() > deadline:
                self._give_up()
                break
            self._collect()
        if self._failure is not None and deadline is not None:
            raise self._failure
        return self._done

    def _look(self) -> None:
        """Starts requested snapshots, and drops those that are no longer open."""
        if time.monotonic() < self._looked_at + IDLE_S and self._looked_at:
            return
        self._looked_at = time.monotonic()
        name, epoch = self._spec.name, self._spec.epoch
        if reads.epoch_of(self._connection, name, epoch) != epoch:
            raise ReadDelayedError("the source has a new epoch: its tables are snapshotted again")
        found = {read.id: read for read in reads.open_reads(self._connection, name, epoch)}
        for number, reading in list(self._readings.items()):
            if number not in found and not reading.busy:
                self._drop(reading)
        at_work = {r.read.table for r in self._readings.values() if r.read.whole}
        for number, read in found.items():
            if number in self._readings or (read.whole and read.table in at_work):
                continue
            if read.table in self._spec.table_topics and reads.take(self._connection, read):
                self._readings[number] = SnapshotRun(read)
                at_work |= {read.table} if read.whole else set()

    def _step(self, reading: SnapshotRun) -> None:
        """Advances a snapshot through the stages that need no worker."""
        if reading.stage is SnapshotStage.ASKED:
            try:
                with session.connect(
                    self._spec.reader_dsn, options=session.UNFILTERED
                ) as connection:
                    table, rules = reading.read.table, self._spec.columns
                    reading.table = look(connection, table, self._spec.publication, rules)
                self._place(reading, reading.table)
            except (CdcError, psycopg.Error) as error:
                if self._connection.broken:
                    raise
                self._failed(reading, failure.named(reading.read, error))
        if reading.stage is SnapshotStage.PLACING and reading.point is not None:
            if reading.point.reached():
                reading.stage = SnapshotStage.PLACED
            elif time.monotonic() > reading.not_before + _SAY_WAITING_S:
                self._log_waiting(reading)

    def _place(self, reading: SnapshotRun, table: TableFacts) -> None:
        reading.not_before = 0.0
        if not table.key:
            reading.stage = SnapshotStage.PLACED  # the worker determines its position
            return
        reading.point = ReadPoint(self._connection, table.oid)
        self._refuse_step_back(reading)
        reading.stage = SnapshotStage.PLACING

    def _refuse_step_back(self, reading: SnapshotRun) -> None:
        before, point = reading.read.read_lsn, reading.point
        if before is not None and point is not None and point.position <= before:
            raise SourceWentBackError(
                (
                    "the source's log ends before the position of the snapshot of "
                    f"{reading.read.table}"
                ),
                detail=f"snapshot at {before}, end of the log at {point.position}",
                hint="the source was restored or failed over; run headwater source repair",
            )

    def _log_waiting(self, reading: SnapshotRun) -> None:
        assert reading.point is not None  # noqa: S101  # holds in this stage
        text = failure.text(failure.writers(reading.read.table, reading.point.in_the_way()))
        reads.fail(self._connection, reading.read.id, text, final=False)
        reading.not_before = time.monotonic()

    def _hand_out(self) -> None:
        """Assigns work to free workers, by priority."""
        for reading in sorted(self._readings.values(), key=lambda r: r.rank):
            while len(self._work) < self._spec.snapshot_workers and reading.due:
                read = reading.read
                if reading.stage is SnapshotStage.PLACED and not reading.busy:
                    if reading.table is not None and not reading.table.key:
                        self._submit(reading, None, Worker.keyless, read, self._stop.is_set)
                    else:
                        self._submit(reading, None, Worker.start, read)
                elif reading.stage is SnapshotStage.READ and not reading.busy:
                    self._submit(reading, None, Worker.end_offsets, read)
                elif (number := reading.next_part()) is not None:
                    part, last = reading.parts[number], reading.last.get(number)
                    self._submit(reading, number, Worker.chunk, read, part, last)
                else:
                    break

    def _submit(self, reading: SnapshotRun, number: int | None, work: Any, *arguments: Any) -> None:
        def do() -> Any:
            worker = self._worker()
            try:
                return work(worker, *arguments)
            except BaseException:
                worker.close()  # its state is unknown
                raise

        reading.busy.add(number)
        self._work[self._pool.submit(do)] = reading, number

    def _worker(self) -> Worker:
        worker = getattr(self._mine, "worker", None)
        if worker is None:
            worker = self._mine.worker = Worker(self._spec)
            self._workers.append(worker)
        return worker

    def _collect(self) -> None:
        """Waits briefly for completed work, and records the results."""
        if not self._work:
            self._stop.wait(_TICK_S)
            return
        done, _ = wait(self._work, timeout=_TICK_S, return_when=FIRST_COMPLETED)
        for future in done:
            reading, number = self._work.pop(future)
            reading.busy.discard(number)
            if self._stop.is_set() or reading.stage is SnapshotStage.OVER:
                continue
            error = future.exception()
            if error is None:
                self._take(reading, number, future.result())
            elif isinstance(error, Exception):
                self._failed(reading, failure.named(reading.read, error))
            else:
                raise error

    def _take(self, reading: SnapshotRun, number: int | None, result: Any) -> None:
        """Records the result of a worker."""
        kept = True
        if number is not None:
            kept = self._advanced(reading, number, result)
        elif reading.stage is SnapshotStage.READ:
            kept = self._finished(reading, result)
        elif isinstance(result, SnapshotStart):
            kept = self._begun(reading, result)
        elif result is None:
            kept = False
        else:
            reading.read, found = result
            reading.resume([found.part])
            assert reading.read.read_lsn is not None  # noqa: S101  # it has begun
            reads.count(self._connection, reading.read.id, reading.read.read_lsn, found.rows)
        reading.failures = 0
        if not kept:
            self._drop(reading)

    def _begun(self, reading: SnapshotRun, start: SnapshotStart) -> bool:
        point, table = reading.point, reading.table
        assert point is not None  # noqa: S101  # holds in this stage
        assert table is not None  # noqa: S101
        if (start.facts.identity, start.facts.shape) != (table.identity, table.shape):
            reading.restart()  # the table changed after the position was determined
            return True
        progress = SnapshotProgress(table.identity, table.shape, start.ranges)
        expected = start.rows_expected
        if not reads.begin(self._connection, reading.read, point.position, progress, expected):
            return False
        begun = reads.find(self._connection, self._spec.name, reading.read.id)
        if begun is None:
            return False
        reading.read = begun
        reading.resume(list(start.ranges))
        return True

    def _advanced(self, reading: SnapshotRun, number: int, found: Chunk) -> bool:
        read = reading.read
        reading.last[number], reading.parts[number] = found, found.part
        if reading.stage is SnapshotStage.READING and all(part.done for part in reading.parts):
            reading.stage = SnapshotStage.READ
        return reads.advance(self._connection, read, number, found.part, found.rows)

    def _finished(self, reading: SnapshotRun, ends: dict[int, int]) -> bool:
        read = reading.read
        assert read.read_lsn is not None  # noqa: S101  # it has begun
        if reads.finish(self._connection, read.id, read.read_lsn, ends):
            self._done += 1
            _log.info("table read", table=str(read.table), position=str(read.read_lsn))
        return False

    def _failed(self, reading: SnapshotRun, error: CdcError) -> None:
        read = reading.read
        if isinstance(error, TableChangedError):
            # a second worker may report the same change after the restart
            if reading.stage is SnapshotStage.READING:
                reading.restart()
            return
        reads.fail(self._connection, read.id, failure.text(error), final=not error.retriable)
        _log.warning(
            "table is not read", table=str(read.table), code=error.code, reason=error.message
        )
        reading.failed()
        if not error.retriable:
            self._failure = self._failure or error
            self._drop(reading)
        elif reading.stage in (SnapshotStage.PLACING, SnapshotStage.PLACED):
            reading.restart()

    def _give_up(self) -> None:
        for reading in self._readings.values():
            if reading.stage is SnapshotStage.PLACING and reading.point is not None:
                in_the_way = reading.point.in_the_way()
                self._failure = self._failure or failure.writers(reading.read.table, in_the_way)
        self._failure = self._failure or WritersInTheWayError("tables were not snapshotted in time")

    def _drop(self, reading: SnapshotRun) -> None:
        reading.stage = SnapshotStage.OVER
        self._readings.pop(reading.read.id, None)
        reads.let_go(self._connection, reading.read)
