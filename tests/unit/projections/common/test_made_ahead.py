"""The next item is made while its user is at work with the one before."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from projections.common.made_ahead import made_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_one_item_is_made_ahead_and_they_come_in_order() -> None:
    made = [threading.Event() for _ in range(4)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    came = []
    for item in made_ahead(items()):
        came.append(item)
        if item < 3:
            assert made[item + 1].wait(30)  # while this one is in use
        assert not any(event.is_set() for event in made[item + 2 :])

    assert [0, 1, 2, 3] == came


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the second")

    came = made_ahead(items())

    assert 1 == next(came)
    with pytest.raises(ValueError, match="the second"):
        next(came)


def test_a_user_who_stops_early_leaves_no_thread() -> None:
    threads: set[threading.Thread] = set()

    def items() -> Iterator[int]:
        for number in range(10):
            threads.add(threading.current_thread())
            yield number

    came = made_ahead(items())

    assert 0 == next(came)
    came.close()

    assert [False] == [thread.is_alive() for thread in threads]
