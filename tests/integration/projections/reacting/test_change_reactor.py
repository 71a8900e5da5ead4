"""A reactor of a captured table on the real components."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc import consumer
from cdc.consumer import GroupStart, GroupUnknownError, pausing
from eventstore.postgres import schema
from eventstore.postgres.log import PostgresEventLog
from eventstore.process import Dispatch
from eventstore.reactor import HttpPost, Invoke, Reactor
from headwater.cli import main
from projections.reacting.change_reactor import ChangeReactorRunner, reactor_changes
from projections.reacting.dry_run import dry_run_changes
from tests.fix_reactor import SendLetter, store_on
from tests.waiting import stays_so, wait_until

if TYPE_CHECKING:
    from cdc.consumer import Change

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).parents[3] / "programs" / "react_changes.py"


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


def program(captured, url) -> subprocess.Popen[bytes]:
    path = f"{PROGRAM.parents[1]}{os.pathsep}{PROGRAM.parents[2]}"
    spec = captured.spec
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), spec.kafka_bootstrap, spec.name, spec.dsn, url],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def letters_of(store) -> Counter:
    return Counter((each.event.order, each.event.number) for each in store.read_category("letter"))


class Members:
    """One member of the group after another; each may be killed amid an effect."""

    def __init__(self, captured, url, store) -> None:
        self.captured, self.url, self.store = captured, url, store
        self.process = program(captured, url)
        self.kills: list[tuple[str, int]] = []

    def kill(self, chance: random.Random, when: str, number: int) -> None:
        if len(self.kills) < 5 and chance.random() < 0.15:
            self.process.kill()
            self.kills.append((when, number))

    def restart(self) -> None:
        self.end()
        self.process = program(self.captured, self.url)

    def have(self, count: int) -> bool:
        """Whether so many commands have taken effect; meanwhile starts what was killed again."""
        if self.process.poll() is not None:
            assert -signal.SIGKILL == self.process.returncode
            self.process = program(self.captured, self.url)
        return len(letters_of(self.store)) >= count

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def updated(database, capture):
    """Five rows under capture, and a function that updates each of them some times."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, number int)")
        connection.execute("INSERT INTO orders SELECT n, 0 FROM generate_series(1, 5) AS n")
    captured = capture("public.orders")
    schema.upgrade(database)

    def update(times: int) -> None:
        captured.execute(*["UPDATE orders SET number = number + 1"] * times)

    return captured, update


@pytest.mark.fault
def test_killed_members_lose_no_effect_and_double_no_command(database, updated, receiver, run_seed):
    captured, update = updated
    update(6)
    quiet = Reactor(name="letters", react=lambda _: Invoke(print))
    planned = {each.key for each in dry_run_changes(captured.spec, quiet)}
    chance = random.Random(run_seed)  # noqa: S311  # repeats with the run
    with closing(store_on(PostgresEventLog(database))) as store:
        members = Members(captured, receiver.url, store)
        receiver.before = lambda number: members.kill(chance, "before", number)
        receiver.after = lambda number: members.kill(chance, "after", number)
        try:
            wait_until(lambda: members.have(30), timeout_s=200)
        finally:
            members.end()
        letters = letters_of(store)

    wanted = {(str(order), number) for order in range(1, 6) for number in range(1, 7)}
    assert members.kills
    assert dict.fromkeys(wanted, 1) == dict(letters)
    assert wanted == set.union(*receiver.documents().values())
    assert all(len(documents) == 1 for documents in receiver.documents().values())
    # a dry run names the keys that the effects have, and rows of snapshots have none
    assert planned == set(receiver.keys)
    assert 30 == len(planned)


def test_a_pause_ends_what_is_under_way_and_outlives_the_members(
    database, updated, receiver, capsys
):
    captured, update = updated
    kafka, source = captured.spec.kafka_bootstrap, captured.spec.name

    def command(*words: str) -> tuple[int, str]:
        code = main(["reactor", "changes", *words, "--kafka", kafka, "--source", source])
        return code, capsys.readouterr().out

    def state() -> list[tuple[str, str, int]]:
        found = consumer.groups(kafka, source=source)
        return [(each.group, each.state, each.parked_keys) for each in found]

    assert [] == state()
    with pytest.raises(GroupUnknownError):
        consumer.pause(kafka, source=source, group="letters")
    update(2)
    with closing(store_on(PostgresEventLog(database))) as store:
        members = Members(captured, receiver.url, store)
        try:
            wait_until(lambda: members.have(10), timeout_s=120)
            assert (0, "letters is paused\n") == command("pause", "letters")
            update(2)
            assert 0 == command("pause", "letters")[0]  # may be repeated
            assert [("letters", "paused", 0)] == state()
            members.restart()
            # the killed member's partition goes to the new one, which hands out nothing
            stays_so(lambda: receiver.tried, accept=lambda tried: tried == 10, for_s=10)
            wait_until(lambda: pausing.assigned(kafka, "letters"), timeout_s=120)
            assert 10 == len(letters_of(store))
            assert (0, "letters is resumed\n") == command("resume", "letters")
            wait_until(lambda: members.have(20), timeout_s=120)
        finally:
            members.end()

    assert 20 == len(receiver.keys)
    assert all(len(documents) == 1 for documents in receiver.documents().values())
    wait_until(state, accept=lambda groups: groups == [("letters", "stopped", 0)])
    assert 0 == command("parked", "letters")[0]
    assert "letters" in command("list")[1]
