"""Patterns: which rows follow each other, by examples and beside definitions without an index."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from itertools import combinations, permutations, takewhile
from math import inf, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.definition.operators.pattern import Pattern, Step
from projections.definition.registry import load
from projections.errors import DeclarationError, ProjectionError
from projections.incremental.patterns.index import WorkBudget
from projections.incremental.patterns.search import Match
from projections.incremental.patterns.search import matches as searched
from tests.oracles.walked_pattern import Event, episode, resumed, skips

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MINUTE = 60_000_000
LONG = Decimal(12345678901234567890123456789012345678)
TWICE = Decimal(24691357802469135780246913578024691357)
LONGER = Decimal("12345678901234567902469135690246913568.123456789012345678")
FINE = Decimal("123456789012345678.123456789012345678")
REFUSED = ProjectionError("too much")


def matches(pattern: Pattern, given_rows: Sequence[Event]) -> list[Match]:
    return list(searched(pattern, episode(pattern, given_rows), WorkBudget(1_000_000, REFUSED)))


def events(pattern: Pattern, rows: Iterable[tuple[int, dict[str, Any]]]) -> list[Event]:
    """Rows of a group, by the minute; `where` of a step names the kind of row that fits it."""
    return [
        Event(minute * MINUTE, [step.where == row["kind"] for step in pattern.steps], row)
        for minute, row in rows
    ]


def found(pattern: Pattern, *rows: tuple[Any, ...]) -> list[list[int]]:
    """Places of the rows of each match."""
    named = [(row[0], dict(zip(("kind", "country"), row[1:], strict=False))) for row in rows]
    return [
        [place for _, place in match.taken] for match in matches(pattern, events(pattern, named))
    ]


FRAUD = Pattern([Step("declined", "declined", times=3), Step("large", "large")], within="1 hour")
ABROAD = Pattern(
    [Step("one", "order"), Step("other", "order", beside=["country <> one.country"])],
    within="10 minutes",
)
UNPAID = Pattern([Step("placed", "placed"), Step("paid", "paid", absent=True)], within="30 minutes")


def test_three_declined_payments_and_then_a_large_order() -> None:
    rows = [(0, "declined"), (5, "declined"), (9, "small"), (20, "declined"), (50, "large")]

    assert [[0, 1, 3, 4]] == found(FRAUD, *rows)
    assert [] == found(FRAUD, *rows[:3], *rows[4:])
    assert [] == found(FRAUD, *rows[:4], (61, "large"))
    assert [] == found(Pattern(FRAUD.steps, FRAUD.within, strict=True), *rows)


def test_more_rows_may_fit_a_step_than_it_takes() -> None:
    rows = [(0, "declined"), (5, "declined"), (9, "declined"), (12, "declined"), (20, "large")]
    again = Pattern(FRAUD.steps, FRAUD.within, skip="to next row")

    assert [[0, 1, 2, 4]] == found(FRAUD, *rows)
    assert [[0, 1, 2, 4], [1, 2, 3, 4]] == found(again, *rows)
    assert [[1, 2, 3, 4]] == found(Pattern(FRAUD.steps, FRAUD.within, strict=True), *rows)


def test_orders_from_two_countries_within_ten_minutes() -> None:
    rows = (0, "order", "SE"), (4, "order", "SE"), (10, "order", "NO"), (12, "order", None)

    assert [[0, 2]] == found(ABROAD, *rows)
    assert [[0, 1]] == found(ABROAD, *rows[1:])
    assert [] == found(ABROAD, rows[0], (11, "order", "NO"))
    again = Pattern(ABROAD.steps, ABROAD.within, skip="to next row")
    assert [[0, 2], [1, 2]] == found(again, *rows)


def test_an_order_without_a_payment_in_half_an_hour() -> None:
    def due(*rows: tuple[Any, ...]) -> list[Match]:
        return matches(UNPAID, events(UNPAID, [(at, {"kind": kind}) for at, kind in rows]))

    assert [Match((("placed", 0),), 30 * MINUTE)] == due((0, "placed"))
    assert [] == due((0, "placed"), (30, "paid"))
    assert [30 * MINUTE] == [match.due for match in due((0, "placed"), (31, "paid"))]
    assert [51 * MINUTE] == [each.due for each in due((0, "placed"), (20, "paid"), (21, "placed"))]


def test_what_must_not_lie_between_takes_a_match_back() -> None:
    pattern = Pattern(
        [Step("in", "in"), Step("out", "out", absent=True), Step("buy", "buy")], within="1 hour"
    )

    assert [[0, 2]] == found(pattern, (0, "in"), (1, "look"), (2, "buy"))
    assert [] == found(pattern, (0, "in"), (1, "out"), (2, "buy"))
    assert [[2, 3]] == found(pattern, (0, "in"), (1, "out"), (2, "in"), (3, "buy"))


def test_what_must_not_lie_between_counts_until_the_step_behind_it_has_all_its_rows() -> None:
    steps = [Step("in", "in"), Step("out", "out", absent=True), Step("buy", "buy", times=2)]
    pattern = Pattern(steps, within="1 hour")

    assert [[0, 1, 3]] == found(pattern, (0, "in"), (1, "buy"), (2, "look"), (3, "buy"))
    assert [] == found(pattern, (0, "in"), (1, "buy"), (2, "out"), (3, "buy"))


@pytest.mark.parametrize(
    ("skip", "places"),
    [
        ("past last row", [[0, 1, 3]]),
        ("to next row", [[0, 1, 3], [1, 3, 4], [2, 3, 4], [3, 4, 5]]),
        ("to first up", [[0, 1, 3], [1, 3, 4], [3, 4, 5]]),
        ("to last up", [[0, 1, 3], [3, 4, 5]]),
    ],
)
def test_the_next_match_may_begin_with_a_row_of_this_one(
    skip: str, places: list[list[int]]
) -> None:
    steps = [Step("low", "x"), Step("up", "x", times=2, beside=["size > low.size"])]
    pattern = Pattern(steps, within="1 hour", skip=skip)
    rows = [(n, {"kind": "x", "size": size}) for n, size in enumerate([1, 2, 1, 3, 4, 5])]

    assert places == [
        [at for _, at in match.taken] for match in matches(pattern, events(pattern, rows))
    ]


def test_a_skip_may_go_to_the_last_of_the_first_rows() -> None:
    pattern = Pattern([Step("a", "a", times=2), Step("b", "b")], "1 hour", skip="to last a")

    assert [[0, 1, 3], [1, 2, 3]] == found(pattern, (0, "a"), (1, "a"), (2, "a"), (3, "b"))


@pytest.mark.parametrize(
    ("beside", "first", "size", "holds"),
    [
        ("size > 10 * a.size", 5, 51, True),
        ("size > 10 * a.size", 5, 50, False),
        ("size >= a.size + 100", Decimal("0.01"), Decimal("100.01"), True),
        ("size >= a.size + 100", Decimal("0.01"), Decimal("100.00"), False),
        ("size<a.size-0.5", 1, Decimal("0.5"), False),
        ("size<-2*a.size-0.5", -1, 1, True),
        ("size = 0.1 * a.size", Decimal(3), Decimal("0.3"), True),
        ("size = 0.1 * a.size", 3, Decimal("0.30"), True),
        ("size = 0.1 * a.size", 3.0, 0.1 * 3, True),
        ("size = 2 * a.size + 1", LONG, TWICE, True),
        ("size > 2 * a.size + 1", LONG, TWICE, False),
        ("size = 1.000000000000000001 * a.size", LONG, LONGER, True),
        ("size = a.size - 123456789012345678.123456789012345678", FINE, 0, True),
        ("size > 10 * a.size", None, 1, False),
        ("size <> 10 * a.size", None, 1, False),
        ("size <> 10 * a.size", 1, None, False),
        ("size <> 10 * a.size", nan, 1, True),
        ("size <= 10 * a.size", nan, 1, False),
        ("size < 10 * a.size", inf, 1, True),
    ],
)
def test_a_row_is_compared_with_what_is_reckoned_from_another(
    beside: str, first: Any, size: Any, holds: bool
) -> None:
    pattern = Pattern([Step("a", "a"), Step("b", "b", beside=[beside])], within="1 hour")
    rows = [(0, {"kind": "a", "size": first}), (1, {"kind": "b", "size": size})]

    assert holds == bool(matches(pattern, events(pattern, rows)))


@pytest.mark.parametrize("compared", [">", "<>", "="])
def test_a_step_of_two_rows_may_find_its_first_at_the_end(compared: str) -> None:
    steps = [Step("a", "a"), Step("b", "b", times=2, beside=[f"size {compared} a.size + 1"])]
    sizes = [("a", 1), ("b", 2 if compared != "=" else 0), ("b", 3 if compared != "=" else 2)]
    rows = [(n, {"kind": kind, "size": size}) for n, (kind, size) in enumerate(sizes)]
    pattern = Pattern(steps, within="1 hour")

    assert [] == matches(pattern, events(pattern, rows))


def test_only_conditions_on_the_very_same_value_exclude_each_other() -> None:
    Step("b", "x", beside=["u > 2 * a.u", "u <= a.u", "u < a.u + 1", "u < 2 * a.v"])
    Step("b", "x", beside=["u >= 2 * a.u", "u <= 2.0 * a.u + 0"])

    with pytest.raises(DeclarationError, match="exclude every row") as refused:
        Step("b", "x", beside=["u > 2 * a.u + 1.50", "u > a.u", "u <= 2.0 * a.u + 1.5"])
    assert "u > 2 * a.u + 1.50, u <= 2.0 * a.u + 1.5" == refused.value.detail


class Row(NamedTuple):
    minute: int
    kind: str
    size: int


rows = st.lists(
    st.builds(Row, st.integers(0, 6), st.sampled_from("abc"), st.integers(0, 2)), max_size=9
)
kinds = st.sampled_from("abc")


SIZES = {
    "size >= s0.size": lambda size, first: size >= first,
    "size > 2 * s0.size": lambda size, first: size > 2 * first,
    "size = s0.size - 1": lambda size, first: size == first - 1,
    "size <> 0.5 * s0.size + 0.5": lambda size, first: 2 * size != first + 1,
}


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    strict = draw(st.booleans())
    steps = [Step("s0", draw(kinds), times=draw(st.integers(1, 2)))]
    for number in range(1, draw(st.integers(1, 4))):
        absent = not strict and draw(st.booleans())
        beside = [said] if (said := draw(st.sampled_from(["", *SIZES]))) else []
        times = 1 if absent else draw(st.integers(1, 2))
        steps.append(Step(f"s{number}", draw(kinds), times, absent, beside))
    skip = draw(st.sampled_from(skips(steps)))
    return Pattern(steps, f"{draw(st.integers(1, 7))} minutes", strict, skip)


def expected(pattern: Pattern, given_rows: Sequence[Row]) -> list[Match]:
    """Each row that is taken is the first that fits after the one before it; see the module."""
    found: list[Match] = []
    start = 0
    while start < len(given_rows):
        match = _expected(pattern, given_rows, start)
        if match is not None:
            found.append(match)
        start = resumed(pattern, match) if match else start + 1
    return found


def _expected(pattern: Pattern, given_rows: Sequence[Row], start: int) -> Match | None:
    last = given_rows[start].minute + int(pattern.within.split()[0])
    inside = [n for n in range(start, len(given_rows)) if given_rows[n].minute <= last]
    taken: list[tuple[str, int]] = []
    size: int | None = None  # of the last row that the first step took

    def fits(step: Step, place: int) -> bool:
        row = given_rows[place]
        beside = [SIZES[said] for said in step.beside if size is not None]
        return row.kind == step.where and all(holds(row.size, size) for holds in beside)

    wanted = [step for step in pattern.steps for _ in range(step.times) if not step.absent]
    for step in wanted:
        before = taken[-1][1] if taken else start - 1
        places = [place for place in inside if place > before and fits(step, place)]
        if not places or ((pattern.strict or not taken) and places[0] != before + 1):
            return None
        ahead = reversed(pattern.steps[: _at(pattern, step)])
        between = list(takewhile(lambda each: each.absent, ahead))
        if any(fits(no, place) for no in between for place in range(before + 1, places[0])):
            return None
        taken.append((step.name, places[0]))
        if step is pattern.steps[0]:
            size = given_rows[places[0]].size
    behind = pattern.steps[_at(pattern, wanted[-1]) + 1 :]
    if any(fits(no, place) for no in behind for place in inside if place > taken[-1][1]):
        return None
    return Match(tuple(taken), last * MINUTE if behind else None)


def _at(pattern: Pattern, step: Step) -> int:
    return next(number for number, each in enumerate(pattern.steps) if each is step)


@given(patterns(), rows)
def test_matches_are_what_their_definition_says(pattern: Pattern, given_rows: list[Row]) -> None:
    ordered = sorted(given_rows)
    shown = [(row.minute, {"kind": row.kind, "size": row.size}) for row in ordered]

    assert expected(pattern, ordered) == matches(pattern, events(pattern, shown))


@st.composite
def unordered(draw: st.DrawFn) -> tuple[Pattern, list[tuple[int, frozenset[int]]]]:
    """A pattern in any order, and rows that fit any of its steps: minutes, and which steps."""
    times = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    steps = [Step(f"s{number}", "true", each) for number, each in enumerate(times)]
    strict, skip = draw(st.booleans()), draw(st.sampled_from(skips(steps, any_order=True)))
    fits = st.frozensets(st.integers(0, len(times) - 1))
    given_rows = draw(st.lists(st.tuples(st.integers(0, 6), fits), max_size=8))
    width = f"{draw(st.integers(1, 7))} minutes"
    pattern = Pattern(steps, width, strict, skip, any_order=True)
    return pattern, sorted(given_rows, key=lambda row: row[0])


def places_of(pattern: Pattern, fits: Sequence[frozenset[int]], minutes: list[int]) -> list[Any]:
    """Of all sets of rows that can be given to the steps, the first that begins with each row."""
    slots = [n for n, step in enumerate(pattern.steps) for _ in range(step.times)]
    width = int(pattern.within.split()[0])
    result: list[Any] = []
    start = 0
    while start < len(fits):
        last = minutes[start] + width
        inside = [n for n in range(start + 1, len(fits)) if minutes[n] <= last]
        sets = (
            (start, *rest)
            for rest in combinations(inside, len(slots) - 1)
            if not pattern.strict or list(rest) == list(range(start + 1, start + len(slots)))
        )
        first = next((s for s in sets if can_be_given(s, fits, slots)), None)
        if first is not None:
            result.append(list(first))
        start = first[-1] + 1 if first and pattern.skip == "past last row" else start + 1
    return result


def can_be_given(
    places: Sequence[int], fits: Sequence[frozenset[int]], slots: Sequence[int]
) -> bool:
    return any(
        all(step in fits[place] for place, step in zip(places, order, strict=True))
        for order in set(permutations(slots))
    )


@given(unordered())
def test_in_any_order_the_first_rows_that_can_be_given_to_the_steps_are_a_match(
    drawn: tuple[Pattern, list[tuple[int, frozenset[int]]]],
) -> None:
    pattern, given_rows = drawn
    steps = range(len(pattern.steps))
    shown = [
        Event(minute * MINUTE, [step in fits for step in steps], {}) for minute, fits in given_rows
    ]
    fits, minutes = [fits for _, fits in given_rows], [minute for minute, _ in given_rows]

    found = matches(pattern, shown)

    assert places_of(pattern, fits, minutes) == [[place for _, place in m.taken] for m in found]
    for match in found:
        assert Counter({step.name: step.times for step in pattern.steps}) == Counter(
            name for name, _ in match.taken
        )
        assert all(int(name[1:]) in fits[place] for name, place in match.taken)


def test_a_card_is_reported_and_used_and_its_address_changed_in_any_order() -> None:
    parts = [Step("used", "used", times=2), Step("moved", "moved"), Step("asked", "asked")]
    pattern = Pattern(parts, within="1 hour", any_order=True)

    assert [[0, 1, 3, 4]] == found(
        pattern, (0, "asked"), (1, "used"), (2, "other"), (3, "moved"), (4, "used")
    )
    assert [] == found(pattern, (0, "asked"), (1, "used"), (2, "moved"), (61, "used"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            'Pattern([Step("a", "x"), Step("b", "y", 1, True)], "1 day", any_order=True)',
            "cannot be used with any_order",
        ),
        (
            'Pattern([Step("a", "x"), Step("b", "y", beside=["u > a.u"])], "1 day", any_order=1)',
            "cannot be used with any_order",
        ),
        ('Pattern([], "1 hour")', "cannot be absent"),
        ('Pattern([Step("a", "x", absent=True)], "1 hour")', "cannot be absent"),
        ('Pattern([Step("a", "x"), Step("a", "y")], "1 hour")', "have the name a"),
        ('Pattern([Step("a", "x")], "a while")', "invalid duration"),
        ('Pattern([Step("a", "x")])', "needs within"),
        (
            'Pattern([Step("a", "x"), Step("b", "y", beside=["u < a.u", "u >= a.u"])], "1 day")',
            "exclude every row",
        ),
        ('Pattern([Step("A b", "x")], "1 hour")', "name of a step"),
        ('Pattern([Step("a", "x", times=0)], "1 hour")', "0 times"),
        ('Pattern([Step("a", "x"), Step("b", "y", 2, True)], "1 hour")', "2 times"),
        ('Pattern([Step("a", "x", beside=["amount"])], "1 hour")', "an invalid comparison"),
        ('Pattern([Step("a", "x", beside=["u > b.u"])], "1 hour")', "has no row yet"),
        (
            'Pattern([Step("a", "x"), Step("n", "y", absent=True), Step("b", "z")], "1 day", True)',
            "cannot have an absent step",
        ),
        ('Pattern([Step("a", "x", beside=["u > b.u * 2"])], "1 day")', "an invalid comparison"),
        ('Pattern([Step("a", "x", beside=["u > 2.5"])], "1 day")', "an invalid comparison"),
        (
            'Pattern([Step("a", "x", beside=["u > 0.0 * b.u"])], "1 day")',
            "not compared with a column of b",
        ),
        ('Pattern([Step("a", "x")], "1 day", skip="to first a")', "the first row of this match"),
        ('Pattern([Step("a", "x")], "1 day", skip="to last a")', "the first row of this match"),
        ('Pattern([Step("a", "x")], "1 day", skip="to last b")', "b has no row to skip to"),
        (
            'Pattern([Step("a", "x"), Step("b", "y", absent=True)], "1 day", skip="to first b")',
            "b has no row to skip to",
        ),
        ('Pattern([Step("a", "x")], "1 day", skip="to a")', "the skip of a pattern is invalid"),
        ('Pattern([Step("a", "x")], "1 day", False, True)', "the skip of a pattern is invalid"),
        (
            'Pattern([Step("a", "x"), Step("b", "y", 2)], "1 day", skip="to last b", any_order=1)',
            "skip cannot name a step with any_order",
        ),
    ],
)
def test_what_can_never_match_is_refused_with_the_reason(
    tmp_path: Path, said: str, why: str
) -> None:
    with pytest.raises(DeclarationError, match=why):
        _declared(tmp_path, said)


def test_a_match_is_a_row_of_its_view(tmp_path: Path) -> None:
    view = _declared(tmp_path, 'Pattern([Step("a", "x")], "1 hour")').derived["v"]
    other = _declared(tmp_path, 'Pattern([Step("a", "y")], "1 hour")').derived["v"]

    assert ("card", "match_start", "match_number") == view.keys
    assert view.fingerprint != other.fingerprint


def _declared(folder: Path, said: str) -> Any:
    path = folder / "views.py"
    path.write_text(
        "from headwater import Pattern, Step, source, view\n"
        'shop = source("shop", tables=["payments"])\n'
        'payments = view.mirror("payments", shop.payments)\n'
        f'view.pattern("v", payments, by=["card"], time="at", pattern={said}, to=["table"])\n'
    )
    return load(path)
