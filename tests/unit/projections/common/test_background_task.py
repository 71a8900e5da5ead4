"""A part of the job beside its queries does not end unseen."""

from __future__ import annotations

import pytest

from projections.common import background_task
from projections.common.background_task import FAILURES_MAX, BackgroundTask
from projections.errors import AttendantFailedError


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_task, "PAUSE_S", 0.0)


class Part(BackgroundTask):
    """Fails so often, each time in its second round, and then comes around."""

    def __init__(self, failures: int) -> None:
        super().__init__("part")
        self.failures = failures
        self.begun = 0
        self.said: list[object] = []

    def work(self) -> None:
        self.begun += 1
        rounds = 0
        while not self.rested(0.0):
            rounds += 1
            self.said.append(self.condition()["error"])
            if rounds == 2 and self.begun <= self.failures:
                raise KeyError("a value that nobody may see")
            if rounds == 3:
                self.stop()


def _ran(failures: int) -> Part:
    part = Part(failures)
    part.start()
    part.join(30)
    assert not part.is_alive()
    return part


def test_one_that_fails_is_begun_anew_and_says_so_until_it_comes_around() -> None:
    part = _ran(1)

    assert 2 == part.begun
    assert part.fault is None
    error = part.said[2]
    assert isinstance(error, dict)
    assert AttendantFailedError.code == error["code"]
    assert [None, None, error, None, None] == part.said
    assert "KeyError at " in error["detail"]
    assert "value" not in str(error)
    assert part.condition()["around_at"] > 0


def test_one_that_fails_again_and_again_is_given_up() -> None:
    part = _ran(1_000)

    assert FAILURES_MAX == part.begun
    assert part.fault is not None
    assert part.fault.retriable
    assert part.fault.code == part.condition()["error"]["code"]


def test_failures_far_apart_are_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_task, "CALM_S", 0.0)
    part = _ran(3 * FAILURES_MAX)

    assert 3 * FAILURES_MAX + 1 == part.begun
    assert part.fault is None
    assert part.condition()["error"] is None


def test_what_fails_once_it_is_told_to_stop_is_no_failure() -> None:
    class Ending(Part):
        def work(self) -> None:
            self.stop()
            raise OSError

    part = Ending(0)
    part.start()
    part.join(30)

    assert part.condition()["error"] is None
