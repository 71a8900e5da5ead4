"""Patterns: what is looked up is what going from row to row finds, and costs a few steps a row."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.definition.operators.pattern import Pattern, Step
from projections.errors import ProjectionError
from projections.incremental.patterns.index import Comparison, RowIndex, WorkBudget
from projections.incremental.patterns.search import GroupRows, Match
from projections.incremental.patterns.search import matches as searched
from tests.fix_seeds import examples
from tests.oracles.pattern_searches import MINUTE, operators, patterns, rows_for, values
from tests.oracles.walked_pattern import Event, episode, holds, walked

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGE = 200_000
MANY = 20_000
ONE, HALF = Decimal("1.00"), Decimal("0.5")
ABROAD = Pattern(
    [Step("one", ""), Step("other", "", beside=["country <> one.country"])], within="10 minutes"
)
REFUSED = ProjectionError("too much")


def matches(pattern: Pattern, given_rows: Sequence[Event]) -> list[Match]:
    return list(searched(pattern, episode(pattern, given_rows), WorkBudget(1_000_000, REFUSED)))


@settings(max_examples=examples(400))
@given(st.data())
def test_what_is_looked_up_is_what_is_found_by_going_from_row_to_row(data: st.DataObject) -> None:
    pattern = data.draw(patterns())
    given_rows = data.draw(rows_for(pattern))

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
    places = RowIndex(range(len(columns)), comparisons, WorkBudget(10_000, REFUSED))

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


@pytest.mark.no_cover  # it would take twice the time
def test_a_large_group_costs_a_few_lookups_for_each_row() -> None:
    """All of them lie within the time of the first, and none is from another country."""
    rows_of_it = GroupRows(
        range(LARGE), [[True] * LARGE] * 2, {"country": ["SE"] * (LARGE - 1) + [None]}
    )
    budget = WorkBudget(3 * LARGE, REFUSED)

    assert [] == list(searched(ABROAD, rows_of_it, budget))
    assert LARGE < budget.spent


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
    rows_of_it = GroupRows(range(MANY), fits, columns)

    assert count == len(list(searched(pattern, rows_of_it, WorkBudget(5 * MANY, REFUSED))))


def test_what_no_index_finds_is_bounded() -> None:
    """Of the rows behind, each is above in both or below in both: none has what is looked for."""
    steps = [Step("a", ""), Step("b", "", beside=["u > a.u", "v < a.v"])]
    sizes = [1] * 100 + [2, 0] * 450
    rows_of_it = GroupRows(range(1_000), [[True] * 1_000] * 2, {"u": sizes, "v": sizes})

    with pytest.raises(ProjectionError, match="too much") as refused:
        list(searched(Pattern(steps, "1 day"), rows_of_it, WorkBudget(10_000, REFUSED)))
    assert refused.value is REFUSED


def test_a_later_row_within_the_time_is_seen_behind_many_of_the_same_time() -> None:
    given_rows = [Event(0, [True, False], {})] * 50 + [Event(5 * MINUTE, [False, True], {})]
    pattern = Pattern([Step("a", ""), Step("b", "")], "5 minutes", skip="to next row")

    assert 50 == len(matches(pattern, given_rows))
    assert [] == matches(Pattern(pattern.steps, "4 minutes", skip="to next row"), given_rows)
