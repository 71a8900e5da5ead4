"""Whether another lap is worth it: few records, a short lap, and more records than can be taken."""

from __future__ import annotations

import pytest

from projections.versions import fill_from_archive
from projections.versions.fill_from_archive import FEW, SOON_S, CatchUpRounds


class Clock:
    """A clock that stands until it is put on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(fill_from_archive, "time", made)
    return made


def test_few_records_are_left_to_the_job(clock: Clock) -> None:
    made = CatchUpRounds()
    made.begin()
    clock.now += 10 * SOON_S

    assert not made.worth(FEW)
    assert not made.outrun
    assert made.worth(FEW + 1)


def test_what_came_in_a_short_time_is_left_to_the_job(clock: Clock) -> None:
    made = CatchUpRounds()
    made.begin()
    clock.now += SOON_S

    assert not made.worth(1_000_000)
    clock.now += 1
    assert made.worth(1_000_000)


def test_of_what_was_begun_earlier_nobody_knows_how_long_ago(clock: Clock) -> None:
    made = CatchUpRounds()
    assert made.worth(FEW + 1), "filled by a process that is gone"
    made.begin(resumed=True)
    clock.now += 1

    assert made.worth(1_000_000)
    assert not made.worth(FEW)


def test_laps_that_get_no_shorter_end(clock: Clock) -> None:
    made = CatchUpRounds()
    made.begin()
    clock.now += 3600
    worth = []
    for left in (100_000, 40_000, 30_000, 29_900):
        worth.append(made.worth(left))
        made.begin(left)
        clock.now += 100
    assert [True, True, True, False] == worth
    assert not made.worth(FEW), "few are no matter"
    assert not made.outrun
    assert not made.worth(50_000)
    assert made.outrun


def test_one_that_goes_on_within_a_lap_compares_with_none_before(clock: Clock) -> None:
    made = CatchUpRounds()
    made.begin(resumed=True)
    clock.now += 3600

    assert made.worth(100_000)
    made.begin(100_000)
    clock.now += 100
    assert not made.worth(100_000)
