"""A reactor of a captured table on the real components."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from fix_reactor import SendLetter, store_on

from cdc import consumer
from cdc.consumer import GroupStart
from eventstore.postgres import schema
from eventstore.postgres.log import PostgresEventLog
from eventstore.process import Dispatch
from eventstore.reactor import HttpPost, Reactor
from projections.reacting.change_reactor import ChangeReactorRunner, reactor_changes
from tests.waiting import wait_until

if TYPE_CHECKING:
    from cdc.consumer import Change

pytestmark = pytest.mark.integration


def test_changes_have_their_effects_and_a_repetition_has_the_same_keys(database, capture, receiver):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, number int)")
        connection.execute("INSERT INTO orders SELECT n, 0 FROM generate_series(1, 5) AS n")
    captured = capture("public.orders")
    schema.upgrade(database)
    store = store_on(PostgresEventLog(database))

    def react(change: Change) -> list[object]:
        order, number = str(change.key["id"]), change.after["number"]
        post = HttpPost(url=receiver.url, body={"order": order, "number": number})
        return [post, Dispatch(SendLetter(order, number))]

    def run(name: str, start: GroupStart, count: int, orders: int) -> None:
        """A member of the group, until so many effects were made."""
        reactor = Reactor(name="letters", react=react)
        with reactor_changes(captured.spec, reactor, start=start) as changes:
            runner = ChangeReactorRunner(changes, reactor, store)
            thread = threading.Thread(target=runner.run, name=name, daemon=True)
            thread.start()
            wait_until(lambda: receiver.tried >= count)
            wait_until(lambda: len(list(store.read_category("letter"))) >= orders)
            runner.stop()
            thread.join()

    captured.execute("UPDATE orders SET number = 1")
    run("first", GroupStart.BEGINNING, 5, 5)
    captured.execute("UPDATE orders SET number = 2")
    again = {"source": captured.spec.name, "group": "letters", "tables": ["public.orders"]}
    consumer.move(captured.spec.kafka_bootstrap, **again, start=GroupStart.BEGINNING)
    run("second", GroupStart.BEGINNING, 15, 10)
    letters = [(one.event.order, one.event.number) for one in store.read_category("letter")]
    store.close()

    # rows that a snapshot read have no effects
    assert {(str(n), number) for n in range(1, 6) for number in (1, 2)} == set(letters)
    assert 10 == len(letters)
    assert all(len(documents) == 1 for documents in receiver.documents().values())
    assert {1, 2} == {document["number"] for _, document in receiver.came}
    # the first five came a second time, under the keys that they had
    assert [1] * 5 + [2] * 5 == sorted(receiver.keys.values())
