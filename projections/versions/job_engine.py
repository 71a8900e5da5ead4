"""JobEngine: the Spark of a running job does the bulk work of a replay.

The command controls the replay: which records the archive has, where to continue, and which records
are left to single writes. The job finds the newest records of a mirror's keys and writes them, and
it fills other views from all their records. If the job cannot, or is gone for a minute, the command
runs the same tasks in its own process; commits that exist already are not repeated.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

from projections.archive.bulk import FILLING, Filled
from projections.archive.fold_entries import read_folded, read_row_numbers
from projections.archive.progress import stopped as stopped_error
from projections.common.file_lock import WriterLock
from projections.common.task_fence import TaskFence
from projections.definition.views import Store
from projections.errors import BulkLostError, RebuildSpaceError, ReplayError, WriterLockedError
from projections.stores.delta.untouched import untouched
from projections.versions.bulk_requests import BulkFill, BulkRequests, BulkTopicsFill

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

    from projections.archive.bulk import BulkFold, BulkPart, BulkTopics, OnProgress
    from projections.archive.fold import FoldedRows, Integers
    from projections.archive.scan import ArchiveScan
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan
    from projections.versions.bulk_requests import BulkAnswer, BulkWork

GONE_S: Final = 60.0
"""How long the job may not accept requests, seconds: it may be restarting."""

_LOCK_WAIT_S: Final = 10.0
_POLL_S: Final = 0.2


class JobEngine:
    """Delegates bulk work to the job; see `BulkEngine`.

    Args:
        config: The job's configuration.
        plan: The version.
    """

    def __init__(self, config: JobConfig, plan: ViewPlan) -> None:
        self._config = config
        self._place = plan.name
        self._requests = BulkRequests(config)

    def ready(self, plan: ViewPlan) -> bool:
        """Returns whether the tables of a view are still empty; see `BulkEngine`."""
        return Store.TABLE not in plan.to or untouched(self._config.addresses.tables, plan)

    def fold(self, work: BulkFold, on_progress: OnProgress) -> FoldedRows:
        """Finds the newest record of each key; see `BulkEngine`."""
        return read_folded(self._files(self._answer(work, on_progress, work.scan.rows)))

    def look_up(self, work: BulkFold, on_progress: OnProgress) -> Integers:
        """Returns the numbers of the newest records of the named keys; see `BulkEngine`."""
        return read_row_numbers(self._files(self._answer(work, on_progress, 0)))

    def fill(
        self, scan: ArchiveScan, plan: ViewPlan, part: BulkPart, on_progress: OnProgress
    ) -> Filled:
        """Writes newest records to the tables of a view; see `BulkEngine`."""
        answer = self._answer(BulkFill(scan, plan, part), on_progress, len(part.rows))
        left = np.frombuffer(answer.left, np.int64)
        return Filled(answer.upserted, answer.deleted, left)

    def fill_from_all(
        self, scan: ArchiveScan, plan: ViewPlan, work: BulkTopics, on_progress: OnProgress
    ) -> Filled:
        """Writes a view from all records of its topics; see `BulkEngine`."""
        answer = self._answer(BulkTopicsFill(scan, plan, work), on_progress, work.records)
        left = np.frombuffer(answer.left, np.int64)
        return Filled(answer.upserted, answer.deleted, left, answer.filtered)

    def _files(self, answer: BulkAnswer) -> list[Path]:
        folder = self._requests.folder(self._place, answer.id)
        return [folder / name for name in answer.files]

    def _answer(self, work: BulkWork, on_progress: OnProgress, rows: int) -> BulkAnswer:
        return requested(self._requests, self._place, work, on_progress, rows)


def requested(
    requests: BulkRequests, place: str, work: BulkWork, on_progress: OnProgress, rows: int
) -> BulkAnswer:
    """Makes a request and waits for the answer.

    Args:
        requests: The requests to the job.
        place: The version.
        work: The work.
        on_progress: Receives the number of further finished rows.
        rows: Number of rows of the work.

    Raises:
        BulkLostError: The job cannot do it, or is gone.
        RebuildSpaceError: A disk is full.
        ReplayError: `on_progress` has raised it.
    """
    reported = 0
    id_, seen_at = requests.ask(place, work), time.monotonic()
    while True:
        there = requests.there(place, id_)  # the job answers first, then removes it
        answer = requests.answered(place, id_)
        if answer is not None and answer.fault is not None:
            raise _lost(answer.fault, answer.fault_code)
        if answer is not None:
            on_progress(rows - reported)
            return answer
        if not there:
            raise BulkLostError("the job's Spark cannot do it", detail="its request is gone")
        now = min(rows, requests.progress(place, id_).rows)
        on_progress(max(0, now - reported))
        reported = max(reported, now)
        if requests.server() is not None:
            seen_at = time.monotonic()
        elif time.monotonic() - seen_at > GONE_S:
            raise BulkLostError("the job does not run", detail=f"for {GONE_S:.0f} s")
        time.sleep(_POLL_S)


@contextmanager
def answered(requests: BulkRequests, place: str, work: BulkWork) -> Iterator[BulkAnswer]:
    """Has the job do work that nothing else is asked of at a place; yields the answer.

    The files of the answer are there until the end of the block.

    Raises:
        ReplayError: See `requested`.
        WriterLockedError: Another process asks for work there.
    """
    with requests.asking(place):
        try:
            yield requested(requests, place, work, lambda _: None, 0)
        finally:
            requests.withdraw(place)


def _lost(fault: str, code: str | None) -> ReplayError:
    """Returns the error for work that the job has not done; a full disk also stops the command."""
    if code == RebuildSpaceError.code:
        return RebuildSpaceError(
            "a disk is full that the job's Spark needs for a rebuild",
            detail=fault,
            hint="free space there, or raise the quota; then run the command again: it resumes",
        )
    return BulkLostError("the job's Spark cannot do it", detail=fault)


@contextmanager
def fenced(config: JobConfig, plan: ViewPlan, stopped: threading.Event) -> Iterator[None]:
    """Excludes earlier commands' requests from a table, and lets this one make requests.

    Raises:
        ReplayStoppedError: The caller stopped it.
        WriterLockedError: Another command fills this version.
    """
    requests = BulkRequests(config)
    asking = requests.asking(plan.name)
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            asking.acquire()
            break
        except WriterLockedError:  # the job may be checking for a command
            if time.monotonic() > deadline:
                raise
            stopped.wait(_POLL_S)
    try:
        fence(config, plan, stopped)
        yield
    finally:
        requests.withdraw(plan.name)
        asking.release()


def fence(config: JobConfig, plan: ViewPlan, stopped: threading.Event) -> None:
    """Cancels the version's request, and waits until the job writes nothing for it.

    Raises:
        ReplayStoppedError: The caller stopped it.
    """
    BulkRequests(config).withdraw(plan.name)
    tables = config.addresses.tables
    while True:
        if stopped.is_set():
            raise stopped_error()
        try:
            with WriterLock(tables / f".{plan.name}.lock", wait=False):
                if TaskFence.close_all(tables / f".{plan.name}{FILLING}", _POLL_S):
                    return
        except WriterLockedError:
            stopped.wait(_POLL_S)
