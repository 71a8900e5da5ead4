"""A wait ends when what is awaited is there, and says what was missing when it is not."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.waiting import wait_until


def test_the_first_accepted_value_is_returned():
    numbers = itertools.count()

    assert 4 == wait_until(lambda: next(numbers), accept=lambda number: number > 3)


def test_without_a_rule_anything_true_is_accepted():
    answers = iter([None, [], "", "there"])

    assert "there" == wait_until(lambda: next(answers))


def test_a_wait_in_vain_says_what_was_awaited_and_seen_last():
    with pytest.raises(AssertionError, match=r"not within 0.02 s: the answer; last seen: \[41\]"):
        wait_until(lambda: [41], "the answer", accept=lambda seen: 42 in seen, timeout_s=0.02)


def test_a_wait_that_is_not_named_says_its_own_text():
    rows: list[int] = []

    with pytest.raises(AssertionError, match=r"len\(rows\) == 2.*; last seen: False"):
        wait_until(lambda: len(rows) == 2, timeout_s=0.01)


def test_how_things_are_is_asked_only_when_the_wait_has_failed():
    asked: list[str] = []

    def told() -> str:
        asked.append("once")
        return "the job is gone"

    wait_until(lambda: True, told)
    assert [] == asked
    with pytest.raises(AssertionError, match="the job is gone"):
        wait_until(lambda: False, told, timeout_s=0)


def test_what_is_there_at_the_deadline_is_found_even_by_a_process_that_stood_still():
    def look() -> bool:
        time_of_day = time.monotonic()
        return time_of_day > began + 0.05

    began = time.monotonic()

    assert wait_until(look, timeout_s=0.05, pause_s=1.0)


def test_what_a_look_raises_ends_the_wait_at_once():
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, timeout_s=60)
