"""OwnTasks: runs the tasks of a rebuild in this process, one after the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from projections.archive.progress import stopped
from projections.common.throttle import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from projections.archive.rebuilding.tasks import RebuildTask, T

_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class OwnTasks:
    """Runs tasks; see `TaskRunner`."""

    _stop: threading.Event = field(default_factory=threading.Event)

    def pace(self, share: float) -> Pace:
        """Returns the pace of tasks; they end soon after they have been stopped."""
        return Pace(share, self._stop)

    def results(self, task: RebuildTask, pieces: int, share: float) -> pa.Table:  # noqa: ARG002  # one runs
        """Runs a task for all pieces; see `TaskRunner`."""
        return pa.Table.from_batches(task.run(self._numbers(pieces)), task.result_schema)

    def watched(self, work: Callable[[], T], look: Callable[[], Any]) -> T:
        """Does work in a thread of its own; see `TaskRunner`."""
        with ThreadPoolExecutor(1, "rebuild") as pool:
            under_way = pool.submit(work)
            try:
                while not under_way.done():
                    wait([under_way], _POLL_S)
                    look()
            except BaseException:
                self._stop.set()
                wait([under_way])
                self._stop.clear()
                raise
            return under_way.result()

    def _numbers(self, pieces: int) -> Iterator[pa.RecordBatch]:
        for number in range(pieces):
            if self._stop.is_set():
                raise stopped()
            yield pa.record_batch({"number": pa.array([number], pa.int64())})
