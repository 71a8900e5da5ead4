"""Stretches have every value that they are made of, and tell apart what lies far apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projections.incremental.analysis.ranges import STRETCHES_MAX, ValueRanges, around

VALUES = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 50), max_size=60)
BOUNDS = st.none() | st.integers(-100, 100)


def has(stretches: ValueRanges, value: int) -> bool:
    return any(
        (first is None or first <= value) and (last is None or value <= last)
        for first, last in stretches.ranges
    )


@given(VALUES, VALUES, st.booleans(), st.booleans())
def test_no_value_is_left_out(one: list[int], two: list[int], nulls: bool, nulls_too: bool) -> None:
    both = around(one, nulls=nulls) | around(two, nulls=nulls_too)

    assert all(has(both, value) for value in [*one, *two])
    assert both.nulls is (nulls or nulls_too)
    assert len(both.ranges) <= STRETCHES_MAX
    assert both.bounded


@given(VALUES, BOUNDS, BOUNDS, st.integers(-100, 100))
def test_what_is_as_much_more_as_is_said_is_there(
    values: list[int], least: int | None, most: int | None, more: int
) -> None:
    moved = around(values, nulls=True).moved(least, most)

    if (least is None or least <= more) and (most is None or more <= most):
        assert all(has(moved, value + more) for value in values)
    assert not moved.nulls


def test_what_is_late_does_not_span_what_lies_between() -> None:
    hour, year = 3_600_000_000, 365 * 24 * 3_600_000_000
    now = [50 * year + minute * 60_000_000 for minute in range(5)]

    found = around([*now, 49 * year]).moved(-hour, 0)

    assert ((49 * year - hour, 49 * year), (now[0] - hour, now[-1])) == found.ranges
    assert ((0, 150),) == around(range(0, 151, 3)).ranges
    assert not around([1]).moved(None, None).bounded
    assert () == around([1, 5]).moved(3, 1).ranges
