"""Writes of every kind to one table, what its history is by them, and a rebuild that dies amid it.

The rebuild is a process of its own, which ends itself with SIGKILL where it is told to.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from deltalake import DeltaTable

from projections.archive import replay
from projections.changes import sweeps
from projections.changes.quarantine import table as quarantine_table
from projections.definition.views import Store
from projections.stores.delta import table_sink
from projections.stores.delta.history import sink as history_sink
from projections.stores.delta.history.sink import HistorySink
from projections.stores.opensearch.sink import SearchSink
from projections.stores.valkey.sink import CacheSink
from projections.versions import fill, fill_from_archive, rebuild, registry
from projections.versions.fill import FillOptions
from projections.versions.version import VersionState
from tests.support.version_steps import connected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from projections.definition.views import View
    from projections.planning.job_spec import JobSpec

TABLE = """
CREATE TABLE things (id int PRIMARY KEY, price int, note text, big text);
ALTER TABLE things ALTER big SET STORAGE EXTERNAL
"""
KEYS = range(1, 41)
TRACKED = ("price", "big")
_PERIOD_S = 0.03
_BIG = 600


class Row(NamedTuple):
    """A row without its key."""

    price: int
    note: str
    big: str


class State(NamedTuple):
    """A state of a key; `followed` tells whether another begins where it ends, None if it holds."""

    row: Row
    followed: bool | None


class Workload(threading.Thread):
    """Writes to the table until it is stopped, and has it read as a whole now and then.

    Attributes:
        stopped: Ends it.
        written: Transactions that were committed.
        error: Why it ended before it was told to.
        read: Asks for a read of the whole table.
        ever: Every row that a key had, if only within a transaction; large values in short.

    Args:
        dsn: The database.
        chance: What it does.
        logged: Whether the log has a row's large value where the row comes under another key.
    """

    def __init__(self, dsn: str, chance: Random, *, logged: bool) -> None:
        super().__init__(name="workload", daemon=True)
        self.stopped = threading.Event()
        self.written = 0
        self.error: Exception | None = None
        self.read: Callable[[], object] = lambda: None
        self.ever: set[tuple[int, Row]] = set()
        self._logged = logged
        self._dsn = dsn
        self._chance = chance
        self._rows: dict[int, Row] = {}
        self._past: dict[int, list[Row | None]] = {key: [] for key in KEYS}
        self._number = 0

    def begin(self) -> None:
        """Makes the table and its first rows."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(TABLE.encode())
            self._transaction(connection, [self._put_in] * 25)

    def run(self) -> None:
        """Writes."""
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                self._transaction(connection, [self._every_big])
                while not self.stopped.wait(_PERIOD_S):
                    self._step(connection)
        except Exception as error:  # noqa: BLE001  # the test tells it
            self.error = error

    def end(self) -> None:
        """Stops it and tells what went wrong."""
        self.stopped.set()
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error

    def states(self) -> dict[int, list[State]]:
        """What the history of each key is, by what was committed; large values in short."""
        found = {key: _states(past) for key, past in self._past.items()}
        return {
            key: [each._replace(row=short(each.row)) for each in own]
            for key, own in found.items()
            if own
        }

    def _step(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._chance
        if chance.random() < 1 / 120:
            self.read()
        if chance.random() < 1 / 150:
            many = [self._put_in] * chance.randint(5, 20)
            if chance.random() < 1 / 2:
                self._transaction(connection, [self._truncate, *many])
            else:
                self._transaction(connection, [self._truncate])
                self._transaction(connection, many)
            return
        kinds = chance.choices(
            [
                *(self._price, self._note, self._big, self._same),
                *(self._put_in, self._take_out, self._move_away, self._put_anew),
            ],
            [6, 6, 3, 1, 4, 2, 2, 1],
            k=chance.choice([1, 1, 1, 1, 2, 6]),
        )
        self._transaction(connection, kinds, undone=chance.random() < 1 / 20)

    def _transaction(
        self,
        connection: psycopg.Connection[Any],
        steps: Sequence[Callable[[psycopg.Connection[Any]], set[int]]],
        *,
        undone: bool = False,
    ) -> None:
        before, touched, seen = dict(self._rows), set[int](), set[tuple[int, Row]]()
        with connection.transaction(force_rollback=undone):
            for step in steps:
                keys = step(connection)
                touched |= keys
                seen |= {(key, short(self._rows[key])) for key in keys if key in self._rows}
        if undone:
            self._rows = before
            return
        self.written += 1
        self.ever |= seen
        for key in touched:
            self._past[key].append(self._rows.get(key))

    def _put_in(self, connection: psycopg.Connection[Any]) -> set[int]:
        free = sorted(KEYS - self._rows.keys())
        if not free:
            return set()
        key = self._chance.choice(free)
        self._rows[key] = Row(self._a_price(), self._a_note(), self._a_big())
        connection.execute("INSERT INTO things VALUES (%s, %s, %s, %s)", (key, *self._rows[key]))
        return {key}

    def _price(self, connection: psycopg.Connection[Any]) -> set[int]:
        return self._update(connection, price=self._a_price())

    def _note(self, connection: psycopg.Connection[Any]) -> set[int]:
        return self._update(connection, note=self._a_note())

    def _big(self, connection: psycopg.Connection[Any]) -> set[int]:
        return self._update(connection, big=self._a_big())

    def _every_big(self, connection: psycopg.Connection[Any]) -> set[int]:
        """Has each large value in the log: one that was only read cannot move to another key."""
        for key, row in self._rows.items():
            self._rows[key] = row._replace(big=self._a_big())
            connection.execute(
                "UPDATE things SET big = %s WHERE id = %s", (self._rows[key].big, key)
            )
        return set(self._rows)

    def _same(self, connection: psycopg.Connection[Any]) -> set[int]:
        keys = self._chance.sample(sorted(self._rows), min(len(self._rows), 6))
        connection.execute("UPDATE things SET price = price WHERE id = ANY (%s)", (keys,))
        return set(keys)

    def _update(self, connection: psycopg.Connection[Any], **values: Any) -> set[int]:
        key = self._there()
        if key is None:
            return set()
        ((name, value),) = values.items()
        self._rows[key] = self._rows[key]._replace(**values)
        connection.execute(f"UPDATE things SET {name} = %s WHERE id = %s".encode(), (value, key))  # noqa: S608
        return {key}

    def _take_out(self, connection: psycopg.Connection[Any]) -> set[int]:
        key = self._there()
        if key is None:
            return set()
        del self._rows[key]
        connection.execute("DELETE FROM things WHERE id = %s", (key,))
        return {key}

    def _put_anew(self, connection: psycopg.Connection[Any]) -> set[int]:
        """Deletes a row, and inserts one of its key in the same transaction."""
        key = self._there()
        if key is None:
            return set()
        connection.execute("DELETE FROM things WHERE id = %s", (key,))
        self._rows[key] = self._rows[key]._replace(note=self._a_note(), price=self._a_price())
        connection.execute("INSERT INTO things VALUES (%s, %s, %s, %s)", (key, *self._rows[key]))
        return {key}

    def _move_away(self, connection: psycopg.Connection[Any]) -> set[int]:
        key, free = self._there(), sorted(KEYS - self._rows.keys())
        if key is None or not free:
            return set()
        to = self._chance.choice(free)
        row = self._rows.pop(key)
        self._rows[to] = row = row._replace(big=self._a_big()) if self._logged else row
        if self._logged:
            given = to, row.big, key
            connection.execute("UPDATE things SET id = %s, big = %s WHERE id = %s", given)
        else:
            connection.execute("UPDATE things SET id = %s WHERE id = %s", (to, key))
        return {key, to}

    def _truncate(self, connection: psycopg.Connection[Any]) -> set[int]:
        gone = set(self._rows)
        self._rows = {}
        connection.execute("TRUNCATE things")
        return gone

    def _there(self) -> int | None:
        """A key that has a row; a few of them more often than the others."""
        keys = sorted(self._rows)
        if self._chance.random() < 1 / 2:
            keys = keys[:5]
        return self._chance.choice(keys) if keys else None

    def _a_price(self) -> int:
        return self._chance.randint(1, 5)

    def _a_note(self) -> str:
        self._number += 1
        return f"note {self._number}"

    def _a_big(self) -> str:
        self._number += 1
        return f"{self._number} " * _BIG


def _states(past: Sequence[Row | None]) -> list[State]:
    found: list[State] = []
    for row in past:
        last = found[-1] if found and found[-1].followed is None else None
        if last is not None:
            if row is not None and all(getattr(row, n) == getattr(last.row, n) for n in TRACKED):
                found[-1] = State(row, None)
                continue
            found[-1] = State(last.row, row is not None)
        if row is not None:
            found.append(State(row, None))
    return found


def short(row: Row) -> Row:
    """A row with its large value in short."""
    return row._replace(big=in_short(row.big))


def in_short(big: str) -> str:
    """What a large value repeats, and how often."""
    return f"{big.partition(' ')[0]} * {big.count(' ')}"


STEPS: tuple[tuple[Any, str], ...] = (
    *((rebuild, name) for name in ("prepare", "join")),
    (fill, "open_sink"),
    *((registry, name) for name in ("add", "note_replayed", "move")),
    (sweeps, "note"),
    (quarantine_table, "write"),
    *((HistorySink, name) for name in ("_log", "_settle", "_note", "_end")),
    *((module, "write_deltalake") for module in (history_sink, table_sink)),
    (DeltaTable, "merge"),
    (CacheSink, "apply"),
    (SearchSink, "apply"),
)
"""All that a rebuild does to the world, a store's part of it or the note of that."""

HALVED = frozenset({CacheSink, SearchSink})


def build(spec: JobSpec, view: View, step: int | None) -> None:
    """Fills a version of a view and has the job take it over; ends the process amid that step."""
    replay.PART_RECORDS = 150  # type: ignore[misc]
    fill_from_archive.AT_ONCE = dict.fromkeys(Store, 40)  # type: ignore[misc]
    fill_from_archive.FEW, fill_from_archive.SOON_S = 0, 0.0  # type: ignore[misc]  # whatever came meanwhile is a lap
    if step is not None:
        left = [step]
        for owner, name in STEPS:
            setattr(owner, name, _counted(getattr(owner, name), left, halved=owner in HALVED))
    with (
        connected(spec.config) as connection,
        registry.version_lock(connection, spec.config.source, view.name),
    ):
        planned = rebuild.plan_rebuild(connection, spec, view, "archive")
        version = rebuild.begin(connection, spec.config, view, planned, 0, held_too=True)
        if version.state is VersionState.BUILDING:
            rebuild.build(connection, spec, version, planned, FillOptions(share=0.5))


def _counted(function: Callable[..., Any], left: list[int], *, halved: bool) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            if halved:
                sink, plan, changes = args
                function(sink, plan, changes[: len(changes) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return counted
