"""Tasks of a rebuild, and the port behind which they run: in this process, or in Spark's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from projections.common.throttle import Pace

T = TypeVar("T")


class RebuildTask(Protocol):
    """Processes pieces of some work by their numbers, in whichever process it is sent to."""

    @property
    def result_schema(self) -> pa.Schema:
        """Schema of the result of a piece."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the pieces whose numbers are in the first column; yields their results."""


class TasksFailedError(RuntimeError):
    """Tasks have failed.

    Args:
        text: What is known of it; it may contain a `Fault`.
        kind: Name of the error's class.
    """

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class TaskRunner(Protocol):
    """Runs tasks."""

    def pace(self, share: float) -> Pace:
        """Returns how fast tasks work that take this share of their time at most."""

    def results(self, task: RebuildTask, pieces: int, share: float) -> pa.Table:
        """Runs a task for all pieces to the end; returns the result of each.

        Args:
            task: The task.
            pieces: How many pieces there are.
            share: Greatest share of the slots that it takes, where several run at once.
        """

    def watched(self, work: Callable[[], T], look: Callable[[], Any]) -> T:
        """Does work that runs tasks; an exception of `look` stops it, and is raised.

        Args:
            work: The work.
            look: Called several times a second during the work.

        Raises:
            TasksFailedError: They have failed.
        """
