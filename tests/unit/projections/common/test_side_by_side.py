"""Work for many views is done a few at a time, in their order, and ends with the first error."""

from __future__ import annotations

import threading

import pytest

from projections.common.side_by_side import side_by_side


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_results_come_in_the_order_of_the_items(count: int) -> None:
    assert [2 * item for item in range(count)] == side_by_side(lambda item: 2 * item, range(count))


def test_several_are_under_way_at_once_and_no_more_than_a_client_has_connections() -> None:
    meeting, lock, inside, most = threading.Barrier(4), threading.Lock(), 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        meeting.wait(30)
        with lock:
            inside -= 1

    side_by_side(work, range(8))

    assert 4 == most


def test_what_has_not_begun_when_one_fails_is_left_out() -> None:
    begun: list[int] = []
    first = threading.Event()

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            first.set()
            raise ValueError("item 0")
        first.wait(30)

    with pytest.raises(ValueError, match="item 0"):
        side_by_side(work, range(1_000))

    assert len(begun) < 1_000
