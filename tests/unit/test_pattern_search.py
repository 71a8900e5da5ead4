"""Patterns: what is looked up is what going from row to row finds, and costs a few steps a row."""

from __future__ import annotations

from decimal import Decimal
from math import nan
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.errors import DeclarationError, ProjectionError
from projections.pattern import Pattern, Step
from projections.pattern_index import COMPARED, Comparison, Effort, Places
from projections.pattern_search import Episode, Match
from projections.pattern_search import matches as searched
from tests.walked_pattern import Event, episode, holds, skips, walked

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTE = 60_000_000
MILLION = 1_000_000
MANY = 20_000
ONE, HALF = Decimal("1.00"), Decimal("0.5")
ABROAD = Pattern(
    [Step("one", ""), Step("other", "", beside=["country <> one.country"])], within="10 minutes"
)
REFUSED = ProjectionError("too much")


def matches(pattern: Pattern, given_rows: Sequence[Event]) -> list[Match]:
    return list(searched(pattern, episode(pattern, given_rows), Effort(1_000_000, REFUSED)))


operators = st.sampled_from(sorted(COMPARED))
factors = st.sampled_from(["", "", "2 * ", "-1 * ", "0.5 * "])
offsets = st.sampled_from(["", "", " + 1", " - 0.5"])
values = st.one_of(
    st.none(), st.integers(0, 3), st.just(nan), st.sampled_from([0.5, 1.0, -0.0, ONE, HALF])
)


@st.composite
def searches(draw: st.DrawFn) -> tuple[Pattern, list[Event]]:
    """Any pattern, and rows of few times and values of which each fits any of its steps."""
    any_order, strict = draw(st.booleans()), draw(st.booleans())
    steps, named = [Step("s0", "true", draw(st.integers(1, 3)))], ["s0"]
    for number in range(1, draw(st.integers(1, 4))):
        absent = not any_order and draw(st.booleans())
        column, other = (
            st.sampled_from("uv"),
            st.sampled_from([f"{each}.{name}" for each in named for name in "uv"]),
        )
        beside = st.lists(
            st.builds("{} {} {}{}{}".format, column, operators, factors, other, offsets)
        )
        try:
            step = Step(
                f"s{number}",
                "true",
                1 if absent else draw(st.integers(1, 3)),
                absent,
                () if any_order else draw(beside.filter(lambda found: len(found) < 4)),
            )
        except DeclarationError:  # it can never match
            continue
        steps.append(step)
        named += [] if absent else [step.name]
    if any(step.absent for step in steps[1:-1]):
        strict = False
    width = f"{draw(st.integers(1, 12))} minutes"
    skip = draw(st.sampled_from(skips(steps, any_order=any_order)))
    fits = st.lists(st.booleans(), min_size=len(steps), max_size=len(steps))
    row = st.tuples(st.integers(0, 12), fits, st.fixed_dictionaries({"u": values, "v": values}))
    drawn = sorted(draw(st.lists(row, max_size=24)), key=lambda each: each[0])
    given_rows = [Event(minute * MINUTE, fitting, shown) for minute, fitting, shown in drawn]
    return Pattern(steps, width, strict, skip, any_order), given_rows


@settings(max_examples=400)
@given(searches())
def test_what_is_looked_up_is_what_is_found_by_going_from_row_to_row(
    search: tuple[Pattern, list[Event]],
) -> None:
    pattern, given_rows = search

    assert walked(pattern, given_rows) == matches(pattern, given_rows)


@given(st.data())
def test_places_are_those_of_which_all_comparisons_hold(data: st.DataObject) -> None:
    held = data.draw(
        st.sampled_from([values, st.lists(st.integers(0, 1), max_size=2), st.text("ab")])
    )
    columns = data.draw(st.lists(st.tuples(held, held), max_size=30))
    compared = data.draw(st.lists(operators, max_size=3))
    comparisons = [
        Comparison(each, [row[number % 2] for row in columns])
        for number, each in enumerate(compared)
    ]
    start, end, count = (data.draw(st.integers(0, 30)) for _ in range(3))
    wanted = [data.draw(held) for _ in comparisons]
    places = Places(range(len(columns)), comparisons, Effort(10_000, REFUSED))

    found = places.take(start, end, count + 1, wanted)

    fitting = [
        place
        for place in range(start, min(end, len(columns)))
        if all(
            holds(each.compared, each.column[place], value)
            for each, value in zip(comparisons, wanted, strict=True)
        )
    ]
    assert (fitting[: count + 1] if len(fitting) > count else []) == list(found)


def test_a_million_rows_of_one_group_cost_a_few_lookups_each() -> None:
    """All of them lie within the time of the first, and none is from another country."""
    rows_of_it = Episode(
        range(MILLION), [[True] * MILLION] * 2, {"country": ["SE"] * (MILLION - 1) + [None]}
    )
    effort = Effort(3 * MILLION, REFUSED)

    assert [] == list(searched(ABROAD, rows_of_it, effort))
    assert MILLION < effort.spent


TWO = [Step("a", ""), Step("b", "")]
THREE = [Step("a", ""), Step("b", "", times=3), Step("c", "")]
NEVER = [[True] * MANY, [False] * MANY]
ALWAYS = [[True] * MANY] * 3
FALLING = {"v": range(MANY, 0, -1)}


@pytest.mark.parametrize(
    ("pattern", "fits", "columns", "count"),
    [
        (Pattern(TWO, "1 day"), NEVER, {}, 0),
        (Pattern(TWO, "1 day", any_order=True), NEVER, {}, 0),
        (Pattern(TWO, "1 day", strict=True), NEVER, {}, 0),
        (Pattern(TWO, "1 day", skip="to next row"), ALWAYS[:2], {}, MANY - 1),
        (Pattern(TWO, "1 day", skip="to next row", any_order=True), ALWAYS[:2], {}, MANY - 1),
        (Pattern([*TWO, Step("c", "", absent=True)], "1 day"), ALWAYS, {}, 1),
        (
            Pattern([Step("a", ""), Step("b", "", beside=["v > a.v"])], "1 day"),
            ALWAYS[:2],
            FALLING,
            0,
        ),
        (
            Pattern([Step("a", ""), Step("b", "", beside=["v > 0.5 * a.v + 7"])], "1 day"),
            ALWAYS[:2],
            FALLING,
            MANY // 2 - 8,
        ),
        (Pattern(TWO, "1 day", skip="to last b"), ALWAYS[:2], {}, MANY - 1),
        (Pattern(THREE, "1 day", skip="to last b"), ALWAYS, {}, MANY // 3),
    ],
    ids=[
        "no second",
        "any order",
        "strict",
        "to next row",
        "both",
        "not absent",
        "never more",
        "reckoned",
        "to last",
        "to last of several",
    ],
)
def test_many_rows_within_one_time_cost_a_few_lookups_each(
    pattern: Pattern, fits: list[list[bool]], columns: dict[str, Sequence[int]], count: int
) -> None:
    rows_of_it = Episode(range(MANY), fits, columns)

    assert count == len(list(searched(pattern, rows_of_it, Effort(5 * MANY, REFUSED))))


def test_what_no_index_finds_is_bounded() -> None:
    """Of the rows behind, each is above in both or below in both: none has what is looked for."""
    steps = [Step("a", ""), Step("b", "", beside=["u > a.u", "v < a.v"])]
    sizes = [1] * 100 + [2, 0] * 450
    rows_of_it = Episode(range(1_000), [[True] * 1_000] * 2, {"u": sizes, "v": sizes})

    with pytest.raises(ProjectionError, match="too much") as refused:
        list(searched(Pattern(steps, "1 day"), rows_of_it, Effort(10_000, REFUSED)))
    assert refused.value is REFUSED


def test_a_later_row_within_the_time_is_seen_behind_many_of_the_same_time() -> None:
    given_rows = [Event(0, [True, False], {})] * 50 + [Event(5 * MINUTE, [False, True], {})]
    pattern = Pattern([Step("a", ""), Step("b", "")], "5 minutes", skip="to next row")

    assert 50 == len(matches(pattern, given_rows))
    assert [] == matches(Pattern(pattern.steps, "4 minutes", skip="to next row"), given_rows)
