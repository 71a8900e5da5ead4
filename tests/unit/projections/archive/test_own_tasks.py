"""Tasks that run in this process: their results, their errors, and their end when stopped."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pytest

from projections.archive.progress import rest
from projections.archive.rebuilding.own_tasks import OwnTasks
from projections.errors import ReplayStoppedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from projections.common.throttle import Pace

DOUBLED = pa.schema([("doubled", pa.int64())])


@dataclass
class Doubling:
    """Doubles numbers; those of `endless` take until the task is stopped."""

    pace: Pace
    endless: frozenset[int] = frozenset()
    begun: threading.Event = field(default_factory=threading.Event)
    result_schema: ClassVar = DOUBLED

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        throttle = self.pace.throttle()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                while number in self.endless:
                    self.begun.set()
                    rest(throttle)
                yield pa.record_batch({"doubled": pa.array([2 * number])})


def stopped_once(event: threading.Event) -> None:
    if event.is_set():
        raise ReplayStoppedError("by its caller")


def test_each_piece_has_a_result_in_order() -> None:
    tasks, looked = OwnTasks(), list[None]()

    found = tasks.watched(
        lambda: tasks.results(Doubling(tasks.pace(1.0)), 4, 1.0), lambda: looked.append(None)
    )

    assert [0, 2, 4, 6] == found["doubled"].to_pylist()


def test_work_without_pieces_has_no_results() -> None:
    tasks = OwnTasks()

    found = tasks.results(Doubling(tasks.pace(1.0)), 0, 1.0)

    assert DOUBLED.empty_table() == found


@pytest.mark.parametrize("share", [0.01, 1.0])
def test_a_task_that_is_stopped_ends_amid_a_piece_and_others_run_afterwards(share: float) -> None:
    tasks = OwnTasks()
    task = Doubling(tasks.pace(share), endless=frozenset([1]))

    with pytest.raises(ReplayStoppedError, match="by its caller"):
        tasks.watched(lambda: tasks.results(task, 3, share), partial(stopped_once, task.begun))

    again = Doubling(tasks.pace(share))
    assert [0, 2] == tasks.results(again, 2, share)["doubled"].to_pylist()


def test_the_error_of_a_task_is_that_of_its_work() -> None:
    tasks = OwnTasks()

    def work() -> None:
        raise ValueError("of a task")

    with pytest.raises(ValueError, match="of a task"):
        tasks.watched(work, lambda: None)
