from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import EnvelopeError
from cdc.lsn import Lsn
from cdc.position import ChangePosition

lsns = st.integers(0, 2**56 - 1).map(Lsn)
positions = st.builds(ChangePosition, st.integers(1, 127), lsns, lsns, st.integers(0, 2**31))


@given(st.integers(0, 2**64 - 1).map(Lsn))
def test_an_lsn_reads_what_it_prints(lsn: Lsn) -> None:
    assert lsn == Lsn.parse(str(lsn))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_lsns_are_ordered_as_their_bytes(one: int, other: int) -> None:
    assert (one < other) == (Lsn(one) < Lsn(other))


@pytest.mark.parametrize("text", ["", "16", "16/", "/1", "16/1FFFFFFFF", "x/1", "1/2/3", "-1/1"])
def test_what_is_no_lsn_is_refused(text: str) -> None:
    with pytest.raises(EnvelopeError):
        Lsn.parse(text)


@given(positions, positions)
def test_a_later_epoch_comes_after_everything_before(
    one: ChangePosition, other: ChangePosition
) -> None:
    if one.epoch < other.epoch:
        assert one < other
        assert one.version < other.version


@given(positions)
def test_a_read_loses_to_what_it_has_not_seen_and_wins_against_what_it_has(
    position: ChangePosition,
) -> None:
    before = ChangePosition.of_read(position.epoch, Lsn(position.lsn.value // 2))
    after = ChangePosition.of_read(position.epoch, Lsn(min(position.lsn.value + 1, 2**56 - 1)))

    assert before.version <= position.version <= after.version


@given(positions)
def test_a_version_is_a_positive_number_of_63_bits(position: ChangePosition) -> None:
    assert 0 < position.version < 2**63


@pytest.mark.parametrize("epoch", [0, 128, -1])
def test_an_epoch_outside_its_bits_is_refused(epoch: int) -> None:
    with pytest.raises(EnvelopeError):
        ChangePosition.of_read(epoch, Lsn(0))


def test_an_lsn_outside_its_bits_is_refused_rather_than_spilled_into_the_epoch() -> None:
    with pytest.raises(EnvelopeError):
        ChangePosition(1, Lsn(0), Lsn(2**56), 1)


def test_a_version_of_a_later_epoch_is_greater_whatever_its_lsn() -> None:
    before = ChangePosition(1, Lsn(0), Lsn(2**56 - 1), 0)
    restored = ChangePosition(2, Lsn(0), Lsn(1), 0)

    assert before.version < restored.version
