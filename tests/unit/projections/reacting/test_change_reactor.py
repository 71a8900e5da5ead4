"""Reactors of changes over changes in memory; the outside is a function that may be away."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdc import Change, ChangePosition, Lsn, Operation, TableName
from eventstore.memory import MemoryEventLog
from eventstore.process import Dispatch
from eventstore.reactor import BreakerPolicy, Invoke, Reactor
from projections.definition.views import DerivedView, EventsRef, EventsView, MirrorView, Store
from projections.errors import DeclarationError, EffectKeyError
from projections.reacting.change_reactor import (
    ChangeReactorRunner,
    change_key,
    reactor_changes,
    tables_of,
)
from projections.reacting.dry_run import dry_run_changes
from tests.fix_reactor import ORDERS, SendLetter, store_on, types
from tests.waiting import wait_until

TABLE = TableName("public", "orders")
QUICK = BreakerPolicy(failures_max=2, open_s=0.01, open_max_s=0.02)


class Outcomes:
    change: Change

    def __init__(self, changes, change_id):
        self.changes, self.id = changes, change_id

    def ack(self):
        self.changes.acked.append(self.id)
        return True

    def fail(self, error):
        self.changes.failed.append((self.id, type(error).__name__))
        return True

    def put_back(self):
        self.changes.put_back.append(self.id)
        self.changes.queue.append(self.change)
        return True

    def park(self, error):
        self.changes.parked.append((self.id, type(error).__name__))
        return True


class MadeChanges:
    """What `Changes` is to the runner: it hands out changes, and is stopped when all are out."""

    def __init__(self):
        self.spec = SimpleNamespace(source="shop")
        self.queue = deque()
        self.acked, self.failed, self.parked, self.put_back = [], [], [], []
        self.stopping = self.paused = False
        self.wanted = 0

    def add(self, lsn, key=1, *, snapshot=False, operation=Operation.UPDATE):
        self.wanted += 1
        outcomes = Outcomes(self, lsn)
        change = Change(
            *(TABLE, operation, None if key is None else {"id": key}, None, {"id": key}),
            ChangePosition(1, Lsn(1), Lsn(lsn), 1),
            *(7, None, snapshot, "shop.public.orders", 0, lsn, 1, False),
            _outcome=outcomes,
        )
        outcomes.change = change
        self.queue.append(change)
        return change

    def take(self, timeout_s=None):  # noqa: ARG002  # as the real one
        if self.queue:
            return self.queue.popleft()
        if len(self.acked) + len(self.failed) + len(self.parked) >= self.wanted:
            self.stopping = True
        return None

    def stop(self):
        self.stopping = True


def reactor(react, **options):
    return Reactor(**{"name": "mail", "react": react, "breaker": QUICK, **options})


def test_each_change_has_its_effects_under_one_key_and_is_acknowledged_after_them():
    changes, made = MadeChanges(), []
    for lsn in (1, 2, 3):
        changes.add(lsn)
    changes.add(4, snapshot=True)
    once = change_key("mail", "shop", changes.queue[0])
    react = lambda _: [Invoke(made.append), Invoke(made.append)]  # noqa: E731
    ChangeReactorRunner(changes, reactor(react)).run()

    assert [1, 2, 3, 4] == changes.acked
    assert 6 == len(set(made)) == len(made)
    assert f"{once}:1" == made[0]
    assert f"{once}:2" == made[1]


def test_a_key_tells_rows_tables_sources_and_positions_apart_and_shows_no_value():
    changes = MadeChanges()
    one, other, later = changes.add(1, "ada@x"), changes.add(1, "bob@x"), changes.add(2, "ada@x")
    keys = [change_key("mail", "shop", each) for each in (one, other, later)]

    assert 4 == len({*keys, change_key("mail", "bank", one)})
    assert keys[0] == change_key("mail", "shop", one)
    assert "ada" not in "".join(keys)
    with pytest.raises(EffectKeyError):
        change_key("mail", "shop", changes.add(3, None))
    assert change_key("mail", "shop", changes.add(4, None, operation=Operation.TRUNCATE))


def test_a_key_tells_floats_apart_that_json_does_not_have():
    changes = MadeChanges()
    values = (float("nan"), float("inf"), float("-inf"), None, 1.5)
    rows = [replace(changes.add(1), key={"id": value}) for value in values]

    assert len(values) == len({change_key("mail", "shop", each) for each in rows})
    assert change_key("mail", "shop", rows[0]) == change_key("mail", "shop", rows[0])


def test_while_the_dependency_is_away_changes_wait_without_an_attempt():
    changes, calls, made = MadeChanges(), [], []
    for lsn in range(1, 9):
        changes.add(lsn, lsn)

    def send(key):
        calls.append(key)
        if len(calls) < 12:
            raise ConnectionError
        made.append(key)

    ChangeReactorRunner(changes, reactor(lambda _: Invoke(send))).run()

    assert [1] == [lsn for lsn, _ in changes.failed]  # before the breaker had opened
    assert set(range(2, 9)) == set(changes.acked)
    assert {1} == set(Counter(made).values())
    assert [] == changes.parked


def test_one_change_on_which_the_dependency_fails_does_not_hold_the_others():
    changes, made = MadeChanges(), []
    for lsn in range(1, 9):
        changes.add(lsn, lsn)

    def send(_, lsn):
        if lsn == 2 and len(made) < 7:
            raise TimeoutError
        made.append(lsn)

    policy = BreakerPolicy(failures_max=1, open_s=0.01, open_max_s=0.02)
    react = lambda change: Invoke(send, change.key["id"])  # noqa: E731
    ChangeReactorRunner(changes, reactor(react, breaker=policy)).run()

    assert set(range(1, 9)) == set(made) == set(changes.acked)
    assert [] == changes.failed


def test_what_cannot_succeed_parks_its_key_and_the_rest_is_retried():
    changes = MadeChanges()
    for lsn, key in ((1, 1), (2, None), (3, 3), (4, 4)):
        changes.add(lsn, key)
    store = store_on(MemoryEventLog())

    async def never():
        raise AssertionError

    def react(change):
        number = change.key["id"] if change.key else 0
        if number == 1:
            return Dispatch(SendLetter("1", -1))  # the domain refuses it
        if number == 3:
            raise KeyError
        return Invoke(lambda _: never())

    ChangeReactorRunner(changes, reactor(react), store).run()

    assert [(1, "NoSuchLetterError"), (2, "EffectKeyError"), (4, "WrongKindError")] == (
        changes.parked
    )
    assert [(3, "KeyError")] == changes.failed


def test_a_pause_hands_back_what_waits_for_the_dependency_and_makes_no_effect():
    changes, calls = MadeChanges(), []
    for lsn in (1, 2):
        changes.add(lsn, lsn)

    def send(key):
        calls.append(key)
        changes.paused = True
        raise ConnectionError

    far = BreakerPolicy(failures_max=1, open_s=60)
    runner = ChangeReactorRunner(changes, reactor(lambda _: Invoke(send), breaker=far))
    thread = threading.Thread(target=runner.run)
    thread.start()
    wait_until(lambda: changes.put_back)
    runner.stop()
    thread.join()

    assert [1] == changes.put_back
    assert 1 == len(calls)
    assert [] == changes.failed


def test_a_command_is_done_once_however_often_its_change_comes():
    store = store_on(MemoryEventLog())
    react = lambda change: Dispatch(SendLetter("1", change.offset))  # noqa: E731
    for _ in range(3):
        changes = MadeChanges()
        changes.add(1)
        changes.add(2)
        ChangeReactorRunner(changes, reactor(react), store).run()

    assert [1, 2] == [found.event.number for found in store.read_category("letter")]


def test_without_a_store_a_command_parks_its_key():
    changes = MadeChanges()
    changes.add(1)
    ChangeReactorRunner(changes, reactor(lambda _: Dispatch(SendLetter("1", 1)))).run()

    assert [(1, "DeclarationError")] == changes.parked


def test_a_mirror_stands_for_its_table_and_other_views_are_refused():
    to = frozenset({Store.TABLE})
    mirror = MirrorView("orders", "shop", TABLE, (), to)
    derived = DerivedView("daily", ("day",), to, ("orders",), "SELECT 1")
    events = EventsView("placed", "shop", EventsRef("shop", (), types), to)

    assert [TABLE, "public.items"] == tables_of([mirror, "public.items"])
    with pytest.raises(DeclarationError, match="daily is derived") as refused:
        reactor_changes("kafka:1", reactor(lambda _: None), source="shop", tables=[derived])
    assert "alert" in (refused.value.hint or "")
    with pytest.raises(DeclarationError, match="consists of events"):
        list(dry_run_changes("kafka:1", reactor(lambda _: None), source="shop", tables=[events]))


@pytest.mark.parametrize("options", [{"query": ORDERS}, {"partitions": 2}])
def test_a_reactor_of_events_is_refused(options):
    with pytest.raises(DeclarationError, match="one of events"):
        ChangeReactorRunner(MadeChanges(), reactor(lambda _: None, **options))


def test_stop_ends_a_wait_for_the_dependency():
    changes = MadeChanges()
    changes.add(1)

    def send(_):
        runner.stop()
        raise ConnectionError

    far = BreakerPolicy(failures_max=1, open_s=60)
    runner = ChangeReactorRunner(changes, reactor(lambda _: Invoke(send), breaker=far))
    runner.run()

    assert ([], [], []) == (changes.acked, changes.failed, changes.parked)
