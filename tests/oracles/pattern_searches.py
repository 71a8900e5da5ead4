"""Any pattern, and rows for it, of few times and few values."""

from __future__ import annotations

from decimal import Decimal
from math import nan

from hypothesis import strategies as st

from projections.definition.operators.pattern import Pattern, Step
from projections.errors import DeclarationError
from projections.incremental.patterns.index import COMPARED
from tests.oracles.walked_pattern import Event, skips

MINUTE = 60_000_000

operators = st.sampled_from(sorted(COMPARED))
factors = st.sampled_from(["", "", "2 * ", "-1 * ", "0.5 * "])
offsets = st.sampled_from(["", "", " + 1", " - 0.5"])
reals = st.sampled_from([0.5, 1.0, -0.0, nan, Decimal("1.00"), Decimal("0.5")])
values = st.one_of(st.none(), st.integers(0, 3), reals)


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    """Any pattern."""
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
    return Pattern(steps, width, strict, skip, any_order)


@st.composite
def rows_for(draw: st.DrawFn, pattern: Pattern) -> list[Event]:
    """Rows in order of which each fits any steps of a pattern."""
    size = len(pattern.steps)
    fits = st.lists(st.booleans(), min_size=size, max_size=size)
    row = st.tuples(st.integers(0, 12), fits, st.fixed_dictionaries({"u": values, "v": values}))
    drawn = sorted(draw(st.lists(row, max_size=24)), key=lambda each: each[0])
    return [Event(minute * MINUTE, fitting, shown) for minute, fitting, shown in drawn]
