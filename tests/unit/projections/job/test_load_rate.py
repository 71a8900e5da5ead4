"""How long a load takes until all rows are copied, also one that continues."""

from __future__ import annotations

from itertools import chain, repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING

from projections.job import initial_load
from projections.job.initial_load import LoadRate

if TYPE_CHECKING:
    import pytest


def test_what_was_copied_before_is_no_part_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = chain([100.0, 101.0, 110.0], repeat(120.0))
    monkeypatch.setattr(initial_load, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    rate = LoadRate()

    assert [None, None] == [rate.left_s(0.5), rate.left_s(0.5)]
    assert 10.0 == rate.left_s(0.75)
    assert 0.0 == rate.left_s(1.0)


def test_a_load_that_begins_again_has_no_rate_below_its_beginning() -> None:
    rate = LoadRate()

    assert [None, None] == [rate.left_s(0.5), rate.left_s(0.25)]
