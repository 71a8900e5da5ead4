from __future__ import annotations

import math
import subprocess
import sys

import pytest

from eventstore.errors import (
    NameRefusedError,
    Rejected,
    SubscriptionError,
    UndeclaredError,
    WrongKindError,
)
from eventstore.model.query import Query, QueryItem
from eventstore.subscription import Delivery, Failure, RetryPolicy, Subscription


def nothing(event, delivery):
    return None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": "with space"}, NameRefusedError),
        ({"name": ""}, NameRefusedError),
        ({"name": "x" * 64}, NameRefusedError),
        ({"name": None}, NameRefusedError),
        ({"tenant": "*"}, NameRefusedError),
        ({"partitions": 0}, SubscriptionError),
        ({"partitions": 257}, SubscriptionError),
        ({"partitions": True}, SubscriptionError),
        ({"start": -1}, SubscriptionError),
        ({"start": True}, SubscriptionError),
        ({"start": 1.5}, SubscriptionError),
        ({"batch_size": 0}, SubscriptionError),
        ({"batch_size": 10_001}, SubscriptionError),
        ({"start": 2**63}, SubscriptionError),
        ({"effects_from": "end"}, WrongKindError),
        ({"effects_from": None}, WrongKindError),
        ({"unknown": "halt"}, WrongKindError),
        ({"retry": None}, WrongKindError),
        ({"retry": 3}, WrongKindError),
        ({"query": "order"}, WrongKindError),
        ({"query": None}, WrongKindError),
        ({"query": QueryItem(tags=frozenset({"a:1"}))}, WrongKindError),
        ({"parked_streams_max": -1}, SubscriptionError),
        ({"parked_streams_max": None}, SubscriptionError),
        ({"batch_s_max": -1}, SubscriptionError),
        ({"batch_s_max": math.nan}, SubscriptionError),
        ({"batch_s_max": "1"}, SubscriptionError),
        ({"tables": None}, SubscriptionError),
        ({"tables": "balances"}, SubscriptionError),
    ],
    ids=repr,
)
def test_a_subscription_that_makes_no_sense_is_refused_when_it_is_declared(options, error):
    with pytest.raises(error):
        Subscription(**{"name": "view", "handler": nothing, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"attempts_max": 0},
        {"attempts_max": None},
        {"attempts_max": "3"},
        {"wait_initial_s": -1.0},
        {"wait_initial_s": math.nan},
        {"wait_max_s": -1.0},
        {"wait_max_s": None},
        {"factor": math.nan},
        {"jitter": 1.1},
        {"jitter": math.nan},
        {"permanent": [ValueError]},
        {"permanent": None},
        {"permanent": ("ValueError",)},
        {"permanent": (int,)},
    ],
    ids=repr,
)
def test_a_retry_policy_that_makes_no_sense_is_refused(options):
    with pytest.raises(SubscriptionError):
        RetryPolicy(**options)


def test_a_view_s_tables_are_no_single_name():
    class Balances:
        name = "balances"
        query = Query()
        tables = "abc"

        def apply(self, *_):
            return None

    with pytest.raises(SubscriptionError):
        Subscription.of(Balances())

    Balances.tables = ["abc", "def"]
    assert ("abc", "def") == Subscription.of(Balances()).tables


def test_one_class_of_permanent_errors_is_enough():
    policy = RetryPolicy(permanent=ValueError)

    assert Failure.of(ValueError("1"), 1, policy).permanent


def test_waits_grow_up_to_the_longest_and_end_with_the_last_attempt():
    policy = RetryPolicy(attempts_max=6, wait_initial_s=1, wait_max_s=5, factor=2, jitter=0)

    assert [1, 2, 4, 5, 5, None] == [policy.wait_s(attempts) for attempts in range(1, 7)]


def test_a_wait_varies_within_its_jitter():
    policy = RetryPolicy(wait_initial_s=10, jitter=0.5)
    waits = [policy.wait_s(1) for _ in range(200)]

    assert all(5 <= wait <= 10 for wait in waits)
    assert len(set(waits)) > 100


@pytest.mark.parametrize(
    ("error", "code", "wait_s"),
    [
        (ValueError("row 7: secret"), None, 1),
        (UndeclaredError("no such type"), "HW-E020", None),
        (Rejected("no"), "HW-E013", None),
        (KeyError("k"), None, None),
    ],
    ids=["a program's", "undeclared", "rejected", "permanent"],
)
def test_a_failure_keeps_type_and_code_and_no_text(error, code, wait_s):
    policy = RetryPolicy(wait_initial_s=1, jitter=0, permanent=(KeyError,))
    failure = Failure.of(error, 1, policy)

    assert (code, wait_s) == (failure.error_code, failure.wait_s(policy))
    assert type(error).__name__ == failure.error_type.rpartition(".")[2]
    assert "secret" not in repr(failure)


@pytest.mark.parametrize(
    ("live", "keys"), [(True, ["v:1:1", "v:1:2"]), (False, [])], ids=["live", "replay"]
)
def test_effects_are_kept_when_live_each_with_its_own_key(live, keys):
    delivery = Delivery(None, "v", "default", live, 1, "v:1")
    delivery.effect(print)
    delivery.effect(print)

    assert keys == [effect.key for effect in delivery.held]


def test_declaring_subscriptions_and_processes_loads_no_driver():
    probe = (
        "import sys, eventstore.subscription, eventstore.process\nprint('psycopg' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )

    assert "False" == answer.stdout.strip()
