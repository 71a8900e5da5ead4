"""A decider: three pure functions, and the streams that they are about."""

from __future__ import annotations

import uuid

import pytest

from eventstore import Decider, NameRefusedError, UndeclaredError, aggregate
from eventstore.deciding.decider import decider_of
from tests.fix_account import Account, Deposit, Deposited, Empty, Open, Withdraw, Withdrawn, account


def test_events_are_folded_into_a_state_and_the_state_before_stays():
    before = Account(balance=1)

    after = account().fold(before, [Deposited("a", 5), Withdrawn("a", 2)])

    assert (Account(4, (5, -2)), Account(balance=1)) == (after, before)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, ()),
        ([], ()),
        (Deposited("a", 1), (Deposited("a", 1),)),
        ([Deposited("a", 1)], (Deposited("a", 1),)),
        (iter([Deposited("a", 1), Deposited("a", 2)]), (Deposited("a", 1), Deposited("a", 2))),
    ],
    ids=["nothing", "no events", "one", "a list", "an iterator"],
)
def test_decide_returns_nothing_one_event_or_several(answer, expected):
    decider = account(decide=lambda *_: answer)

    assert expected == decider.decided(Empty("a"), Account())


@pytest.mark.parametrize(
    ("identity", "stream"),
    [
        ("a-1", "account-a-1"),
        (42, "account-42"),
        (uuid.UUID(int=7), "account-00000000-0000-0000-0000-000000000007"),
    ],
    ids=["text", "integer", "UUID"],
)
def test_a_stream_is_named_by_category_and_id(identity, stream):
    decider = account(stream_id=lambda _: identity)

    assert stream == decider.stream_of(Deposit("ignored", 1))


@pytest.mark.parametrize("identity", [None, "", True, 1.0, "a/b", "a\0", "a" * 300], ids=repr)
def test_what_is_no_id_is_refused(identity):
    with pytest.raises(NameRefusedError):
        account().stream(identity)


@pytest.mark.parametrize(
    "fields",
    [{"version": 0}, {"version": True}, {"version": None}, {"snapshot_every": 0},
     {"snapshot_every": 2.0}, {"commands": ("Deposit",)}],
    ids=str,
)  # fmt: skip
def test_a_decider_that_contradicts_itself_is_refused(fields):
    with pytest.raises(UndeclaredError):
        account(**fields)


def test_a_decider_has_a_category_that_a_stream_can_have():
    with pytest.raises(NameRefusedError):
        account(category="an account")


def test_a_decider_is_found_in_itself_and_in_an_aggregate():
    decider = account()

    @aggregate("seat", identity="seat")
    class Seat:
        taken: bool = False

    assert (decider, Seat.decider) == (decider_of(decider), decider_of(Seat))
    with pytest.raises(UndeclaredError):
        decider_of(Account)


def test_a_decider_can_be_hashed_and_names_its_commands():
    assert (Open, Deposit, Withdraw, Empty) == account().commands
    assert isinstance(hash(account()), int)
    assert isinstance(account(), Decider)
