"""Many lines of one kind are one line, and nothing else about them changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.condensed import condensed, names


def test_a_long_run_of_one_kind_is_one_line() -> None:
    lines = [
        "created schema headwater",
        *(f"shape of public.t{number} noted" for number in range(40)),
        "made slot headwater_shop",
        *(f"created topic shop.public.t{number}" for number in range(40)),
        *(f"public.t{number} is to be read" for number in range(6)),
    ]
    assert [
        "created schema headwater",
        "shape of public.t0, public.t1, public.t2 and 37 more noted",
        "made slot headwater_shop",
        "created topic shop.public.t0, shop.public.t1, shop.public.t2 and 37 more",
        "public.t0, public.t1, public.t2 and 3 more is to be read",
    ] == list(condensed(lines))


def test_a_short_run_stays_as_it_is() -> None:
    lines = [f"created topic shop.public.t{number}" for number in range(5)]
    assert lines == list(condensed(lines))


def test_a_name_with_a_space_stays_a_line_of_its_own() -> None:
    lines = [*(f"created topic t{number}" for number in range(6)), "created topic Order Lines"]
    assert "created topic Order Lines" == list(condensed(lines))[-1]


def test_one_more_name_is_named_itself() -> None:
    assert "a, b, c, d" == names("abcd")
    assert "a, b, c and 2 more" == names("abcde")


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c d"]), min_size=1).map(" ".join), max_size=5))
def test_up_to_five_lines_are_never_changed(lines: list[str]) -> None:
    assert lines == list(condensed(lines))
