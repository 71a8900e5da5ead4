"""Consumers of a group are killed, come and go: nothing is lost, each key keeps its order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import cdc
from cdc import consumer
from tests.waiting import take_time, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
]

KEYS = 40
ROUNDS = 50
SESSION_S = 6.0
SLOW_S = 7.0  # one handler's, once
TABLE = cdc.TableSchema(
    cdc.TableName("public", "accounts"),
    (
        cdc.Column("id", cdc.ColumnKind.INTEGER, "integer"),
        cdc.Column("version", cdc.ColumnKind.INTEGER, "integer"),
    ),
    ("id",),
)
CHILD = """
import sys
sys.path.insert(0, {tests!r})
from test_consumer_kill import consume
consume(*sys.argv[1:])
"""


@dataclass(frozen=True)
class Line:
    """One delivery, as a consumer has written it down."""

    at_ns: int
    pid: int
    key: int
    version: int
    counted: bool


def consume(kafka: str, source: str, path: str, seed: str) -> None:
    """The child: writes down each delivery before it acknowledges it, and whether that counted."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the coverage tool's would be left in place
    chance = random.Random(int(seed))  # noqa: S311  # repeatable
    book = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    pauses = iter([SLOW_S] if seed == "1" else [])

    def note(change: cdc.Change, word: str) -> None:
        line = f"{time.monotonic_ns()} {os.getpid()} {change.key['id']} {change.after['version']}"
        os.write(book, f"{line} {word}\n".encode())

    with cdc.changes(
        kafka,
        source=source,
        tables=["public.accounts"],
        group="bookkeepers",
        schemas={TABLE.table: TABLE},
        session_timeout_s=SESSION_S,
        handover_s=2 * SLOW_S,
        records_held_max=50,
    ) as changes:
        for change in changes:
            note(change, "begun")
            take_time(next(pauses, chance.random() * 0.004))
            if change.ack():
                note(change, "counted")


class Consumers:
    """Processes of one group, and the book that they write."""

    def __init__(self, captured: Captured, book: Path) -> None:
        self.arguments = [captured.spec.kafka_bootstrap, captured.spec.name, str(book)]
        self.book = book
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        script = CHILD.format(tests=str(Path(__file__).parent))
        seed = str(len(self.running))
        self.running.append(subprocess.Popen([sys.executable, "-c", script, *self.arguments, seed]))

    def lines(self) -> list[Line]:
        text = self.book.read_text() if self.book.exists() else ""
        found = [line.split() for line in text.splitlines()]
        return sorted(
            (
                Line(int(at), int(pid), int(key), int(version), word == "counted")
                for at, pid, key, version, word in found
            ),
            key=lambda line: line.at_ns,
        )

    def of(self, number: int) -> list[Line]:
        return [line for line in self.lines() if line.pid == self.running[number].pid]

    def end(self, sent: int) -> list[int]:
        for process in self.running:
            process.send_signal(sent)
        return [process.wait(30) for process in self.running]


@pytest.fixture
def consumers(
    database: str, capture: Callable[..., Captured], tmp_path: Path
) -> Iterator[Consumers]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE accounts (id int PRIMARY KEY, version int)")
    group = Consumers(capture("public.accounts", topic_partitions=4), tmp_path / "book")
    yield group
    group.end(signal.SIGKILL)


def write(dsn: str, rounds: range) -> None:
    """Raises the version of every account once in each round, a transaction for each."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for version in rounds:
            connection.execute(
                "INSERT INTO accounts SELECT g, %(v)s FROM generate_series(0, %(k)s) g"
                " ON CONFLICT (id) DO UPDATE SET version = excluded.version",
                {"v": version, "k": KEYS - 1},
            )


def test_a_group_whose_members_are_killed_join_and_leave_loses_nothing(
    consumers: Consumers, database: str
) -> None:
    kafka, source, _ = consumers.arguments
    write(database, range(ROUNDS // 2))
    consumers.start()
    consumers.start()
    wait_until(lambda: len(consumers.of(0)) > 100 and consumers.of(1))
    consumers.running[0].kill()
    write(database, range(ROUNDS // 2, ROUNDS))
    consumers.start()  # joins while the dead one's partitions wait for its session to end
    wait_until(lambda: len(consumers.of(2)) > 50)

    def lag() -> int:
        found = consumer.lag(kafka, source=source, group="bookkeepers", tables=["public.accounts"])
        assert 4 == len(found)
        return sum(place.consumer_lag_records for place in found)

    wait_until(lambda: lag() == 0)
    assert [-signal.SIGKILL, 0, 0] == consumers.end(signal.SIGTERM)  # clean, by themselves

    lines = consumers.lines()
    begun = [(line.key, line.version) for line in lines if not line.counted]
    first: dict[int, list[int]] = defaultdict(list)
    for key, version in dict.fromkeys(begun):
        first[key].append(version)
    everything = list(range(ROUNDS))
    assert dict.fromkeys(range(KEYS), everything) == dict(first)
    # a rebalance repeats what was in hand; a kill, what came after the last commit as well; how
    # much that is depends on the machine, but no group begins anew
    assert len(begun) < KEYS * ROUNDS * 2
    slow, done, *_ = consumers.of(1)
    assert (slow.key, slow.version, True) == (done.key, done.version, done.counted)
    assert done.at_ns - slow.at_ns > SESSION_S * 1e9  # it was not taken for dead
