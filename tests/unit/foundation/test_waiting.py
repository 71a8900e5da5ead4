"""What is waited for is looked at first, between pauses, and once more when the time is up."""

from __future__ import annotations

import time

import pytest

from foundation.waiting import looks, wait_until


class Clock:
    """A clock that moves with the pauses only."""

    def __init__(self):
        self.now = 100.0
        self.pauses = []

    def pause(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


@pytest.mark.parametrize(
    ("within_s", "pauses"),
    [(0, []), (0.5, [0.5]), (2, [1, 1]), (2.5, [1, 1, 0.5])],
)
def test_the_last_look_is_when_the_time_is_up(clock, within_s, pauses):
    count = sum(1 for _ in looks(within_s, 1, pause=clock.pause))

    assert pauses == clock.pauses
    assert len(pauses) + 1 == count


def test_what_is_seen_ends_the_wait(clock):
    for number, _ in enumerate(looks(10, 1, pause=clock.pause)):
        if number == 3:
            break
    else:
        pytest.fail("it was seen")

    assert [1, 1, 1] == clock.pauses


def test_what_took_long_itself_is_not_looked_at_again(clock):
    count = 0
    for _ in looks(5, 1, pause=clock.pause):
        count += 1
        clock.now += 7

    assert (1, []) == (count, clock.pauses)


def test_a_wait_says_whether_it_was_reached():
    answers = iter([False, False, True])

    assert wait_until(lambda: next(answers), 30, 0.001)
    began = time.monotonic()
    assert not wait_until(lambda: False, 0.05, 0.01)
    assert time.monotonic() - began >= 0.05
