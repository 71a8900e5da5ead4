from __future__ import annotations

import pytest

from cdc.connect.errors import ConnectorFailedError
from cdc.connect.rest import ConnectorState, TaskState
from cdc.connect.supervision import Watch


class Worker:
    """Says what it is told to, and counts restarts."""

    def __init__(self, *states: ConnectorState | None) -> None:
        self.states = list(states)
        self.restarted = 0

    def state(self, name: str) -> ConnectorState | None:
        del name
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def restart(self, name: str) -> None:
        del name
        self.restarted += 1


def state(task: str, trace: str | None = None) -> ConnectorState:
    return ConnectorState(TaskState(None, "RUNNING"), (TaskState(0, task, trace),))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_worker_that_starts_again_may_not_know_the_connector_for_a_while() -> None:
    clock, worker = Clock(), Worker(None, None, state("RUNNING"), None, None)
    watch = Watch(worker, "c", clock)

    seen = []
    for _ in range(4):
        seen.append(watch.look())
        clock.now_s += 40

    assert [None, None, state("RUNNING"), None] == seen


def test_a_connector_that_stays_unknown_is_gone() -> None:
    clock = Clock()
    watch = Watch(Worker(None), "c", clock)

    watch.look()
    clock.now_s += 61

    with pytest.raises(ConnectorFailedError, match="connector c does not exist"):
        watch.look()


def test_a_failed_task_is_restarted_with_growing_pauses() -> None:
    clock, worker = Clock(), Worker(state("FAILED", "java.io.IOException: reset"))
    watch = Watch(worker, "c", clock)

    for _ in range(20):
        watch.look()
        clock.now_s += 1

    assert 5 == worker.restarted  # after 0, 1, 3, 7 and 15 seconds
    assert worker.restarted == watch.restarts


def test_a_failure_that_a_restart_does_not_cure_is_final() -> None:
    worker = Worker(state("FAILED", "PSQLException: FATAL: password authentication failed"))

    with pytest.raises(ConnectorFailedError) as refused:
        Watch(worker, "c", Clock()).look()

    assert 0 == worker.restarted
    assert "user and password" in (refused.value.hint or "")
