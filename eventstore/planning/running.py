"""PlanRunner: runs a store's plans over a log whose methods block."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from eventstore.model.callables import check_log
from eventstore.planning.operation import Call, Finished, Pause, Plan, advanced
from eventstore.planning.stream_locks import StreamLocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.log import EventLog

T = TypeVar("T")

mapped: Final = map
"""Applies a function to each item of an iterator."""


class PlanRunner:
    """Runs the plans of a store and of its other tenants.

    Threads: may be used concurrently.

    Args:
        log: Answers what the plans ask.
        in_threads: Not used: here a plan always runs in the caller's thread.

    Raises:
        WrongKindError: The log is a class, of another kind, or one for asyncio.
    """

    def __init__(self, log: EventLog, *, in_threads: bool) -> None:  # noqa: ARG002  # its twin uses it
        check_log(log, asynchronous=False)
        self._log = log
        self._closing: Final = threading.Event()
        self._stream_locks: Final = StreamLocks()

    def run(self, plan: Plan[T], serial_key: tuple[str, str] | None = None) -> T:
        """Runs a plan and returns its result.

        Args:
            plan: What to run.
            serial_key: Tenant and stream. Plans with the same one run one after the other.
        """
        if serial_key is None:
            return self._run(plan)
        with self._stream_locks.holding(*serial_key):
            return self._run(plan)

    def _run(self, plan: Plan[T]) -> T:
        step = advanced(plan)
        while not isinstance(step, Finished):
            try:
                answer = self._perform(step)
            except Exception as error:  # noqa: BLE001  # the plan knows what it means, or raises it
                step = advanced(plan, error=error)
            else:
                step = advanced(plan, answer)
        value: T = step.value
        return value

    def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls what may query a key ring's database."""
        return function(*arguments)

    def close(self) -> None:
        """Ends waits, and closes the log."""
        self._closing.set()
        self._log.close()

    def _perform(self, step: Call | Pause) -> object:
        if isinstance(step, Pause):
            return self._closing.wait(step.seconds)
        answer = getattr(self._log, step.method)(*step.arguments, **step.options)
        return list(answer) if step.method == "read_stream" else answer
