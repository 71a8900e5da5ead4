"""Saved states of streams."""

# ruff: noqa: D102, S101, SIM300  # tests, though they ship
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventstore.log import StateSnapshot
from eventstore.testing.sample import log_of

if TYPE_CHECKING:
    from eventstore.log import EventLog


def saved(position: int, *, stream: str = "order-1", fold: str = "order@1") -> StateSnapshot:
    """Returns a saved state that tells by its bytes what it is of."""
    state = f"{stream} {fold} {position}".encode()
    return StateSnapshot(stream, fold, position, state, bytes([position] * 32), ("c1", "c2"))


class SnapshotContract:
    """One state for each stream and fold, the latest; it is no event."""

    def test_without_a_saved_state_there_is_none(self, log: EventLog) -> None:
        assert log.snapshot("default", "order-1", "order@1") is None

    def test_a_state_reads_back_as_it_was_saved(self, log: EventLog) -> None:
        state = StateSnapshot("order-1", "order@1", 3, bytes(range(256)), b"d" * 32)
        log.save_snapshot("default", state)
        log.save_snapshot("default", saved(4, stream="order-2"))

        assert state == log.snapshot("default", "order-1", "order@1")
        assert saved(4, stream="order-2") == log.snapshot("default", "order-2", "order@1")
        assert [] == log_of(log)

    @pytest.mark.parametrize(
        ("first", "second", "kept"), [(3, 5, 5), (5, 3, 5), (5, 5, 5)], ids=str
    )
    def test_a_later_state_takes_the_place_of_an_earlier_one_and_never_the_reverse(
        self, log: EventLog, first: int, second: int, kept: int
    ) -> None:
        log.save_snapshot("default", saved(first))
        log.save_snapshot("default", saved(second))

        assert saved(kept) == log.snapshot("default", "order-1", "order@1")

    def test_a_state_of_the_same_place_is_replaced_so_that_a_damaged_one_heals(
        self, log: EventLog
    ) -> None:
        log.save_snapshot("default", saved(3)._replace(state=b"damaged"))
        log.save_snapshot("default", saved(3))

        assert saved(3) == log.snapshot("default", "order-1", "order@1")

    def test_another_fold_never_reads_it(self, log: EventLog) -> None:
        log.save_snapshot("default", saved(3, fold="order@1"))
        log.save_snapshot("default", saved(2, fold="order@2"))

        assert saved(3) == log.snapshot("default", "order-1", "order@1")
        assert saved(2, fold="order@2") == log.snapshot("default", "order-1", "order@2")
        assert log.snapshot("default", "order-1", "order@3") is None

    @pytest.mark.parametrize(("through", "found"), [(2, False), (3, True), (4, True)])
    def test_a_state_beyond_what_was_asked_for_is_none(
        self, log: EventLog, through: int, *, found: bool
    ) -> None:
        log.save_snapshot("default", saved(3))

        assert found == bool(log.snapshot("default", "order-1", "order@1", through=through))
