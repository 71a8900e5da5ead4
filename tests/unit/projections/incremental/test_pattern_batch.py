"""Patterns in many groups at once: each has the matches of its own rows, shown as these are."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.definition.operators.pattern import Pattern, Step
from projections.errors import ProjectionError
from projections.incremental.patterns.batch import Limits, find_matches
from tests.fix_seeds import examples
from tests.oracles.pattern_searches import MINUTE, patterns, rows_for
from tests.oracles.walked_pattern import Event, walked

if TYPE_CHECKING:
    from collections.abc import Sequence

MANY, DEAR = ProjectionError("too many"), ProjectionError("too dear")
WIDE = Limits(1_000, MANY, 1_000_000, DEAR)
LISTED = pa.struct([("at", pa.timestamp("us", "UTC")), ("note", pa.string())])


def batch(pattern: Pattern, groups: Sequence[Sequence[Event]]) -> pa.ListArray:
    """Rows of groups as Spark gives them; each shows its group and place."""
    parts = [
        ("at", pa.int64()),
        ("misses", pa.struct([(f"_{n}", pa.bool_()) for n in range(len(pattern.steps))])),
        ("compared", pa.struct([(name, pa.float64()) for name in pattern.compared])),
        ("listed", LISTED),
    ]
    rows = [
        [
            {
                "at": event.at,
                "misses": {f"_{n}": not fit for n, fit in enumerate(event.fits)},
                "compared": {name: real(event.row[name]) for name in pattern.compared},
                "listed": {"at": event.at, "note": f"{number}/{place}"},
            }
            for place, event in enumerate(group)
        ]
        for number, group in enumerate(groups)
    ]
    kind = pa.struct([part for part in parts if pattern.compared or part[0] != "compared"])
    return pa.array(rows, pa.list_(kind))


def real(value: Any) -> float | None:
    return None if value is None else float(value)


@settings(max_examples=examples(200))
@given(st.data())
def test_each_group_has_the_matches_of_its_rows_alone(data: st.DataObject) -> None:
    pattern = data.draw(patterns())
    groups = data.draw(st.lists(rows_for(pattern), max_size=5))
    # whoever gives a part of a batch gives arrays that begin amid others
    first = data.draw(st.integers(0, len(groups)))

    seen = find_matches(pattern, batch(pattern, groups)[first:], WIDE).to_pylist()

    wanted = []
    for number, group in enumerate(groups[first:], first):
        numbers: Counter[int] = Counter()
        matches = []
        for match in walked(pattern, group):
            begins = group[match.taken[0][1]].at
            numbers[begins] += 1
            rows = [(step, f"{number}/{place}") for step, place in match.taken]
            matches.append((numbers[begins], match.due, rows))
        wanted.append(matches)
    assert wanted == [
        [
            (match["number"], match["due"], [(row["step"], row["note"]) for row in match["rows"]])
            for match in matches
        ]
        for matches in seen
    ]


ONE_TWO = Pattern([Step("one", ""), Step("two", "")], "1 hour")


def steady(count: int) -> list[Event]:
    return [Event(n * MINUTE, [n == 0, n == count - 1], {}) for n in range(count)]


def test_a_match_shows_of_its_rows_what_these_have_in_their_types() -> None:
    rows = [Event(0, [True, False], {}), Event(MINUTE, [False, True], {})]

    column = find_matches(ONE_TWO, batch(ONE_TWO, [rows]), WIDE)

    ((match,),) = column
    assert pa.struct([("step", pa.string()), *LISTED]) == match["rows"].type.value_type
    assert [
        {"step": "one", "at": datetime.fromtimestamp(0, UTC), "note": "0/0"},
        {"step": "two", "at": datetime.fromtimestamp(60, UTC), "note": "0/1"},
    ] == match["rows"].as_py()


@pytest.mark.parametrize(
    ("limits", "said"),
    [(Limits(9, MANY, 1_000, DEAR), "too many"), (Limits(10, MANY, 1, DEAR), "too dear")],
)
def test_a_group_that_has_too_much_is_refused(limits: Limits, said: str) -> None:
    groups = [steady(3), steady(10)]

    with pytest.raises(ProjectionError, match=said):
        find_matches(ONE_TWO, batch(ONE_TWO, groups), limits)


def test_a_group_without_rows_for_each_step_costs_no_lookup() -> None:
    lacking = [Event(n * MINUTE, [True, False], {}) for n in range(10)]
    none = Limits(10, MANY, 0, DEAR)

    assert [[], []] == find_matches(ONE_TWO, batch(ONE_TWO, [lacking, []]), none).to_pylist()
