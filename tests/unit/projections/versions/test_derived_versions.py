"""Versions of views made from others are made each after what it reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.definition.views import DerivedView, Store
from projections.errors import RebuildRefusedError
from projections.versions.derived import in_order

NAMES = "abcdef"


def version(name: str, inputs: list[str]) -> DerivedView:
    return DerivedView(name, ("id",), frozenset({Store.TABLE}), tuple(inputs), "SELECT 1")


@given(st.permutations(NAMES), st.data())
def test_each_view_comes_after_what_any_version_of_it_reads(
    order: list[str], data: st.DataObject
) -> None:
    views = {
        name: [
            version(
                f"{name}.v{number}", data.draw(st.lists(st.sampled_from(["t", *order[:place]])))
            )
            for number in (1, 2)
        ]
        for place, name in enumerate(order)
    }
    shuffled = dict(data.draw(st.permutations(list(views.items()))))

    found = in_order(shuffled)

    assert sorted(found) == sorted(views)
    for name, versions in views.items():
        read = {each for made in versions for each in made.inputs} - {"t"}
        assert all(found.index(each) < found.index(name) for each in read)


def test_versions_that_would_each_be_made_from_the_next_are_refused() -> None:
    views = {
        "a": [version("a", ["orders"]), version("a.v2", ["b"])],
        "b": [version("b", ["a"])],
    }

    with pytest.raises(RebuildRefusedError, match="made from the next") as refused:
        in_order(views)
    assert refused.value.detail in {"a <- b <- a", "b <- a <- b"}
