"""Reads among transactions that interleave in every way: the newest version of a key is its row."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from psycopg import errors

from cdc.lsn import Lsn
from cdc.snapshot import read_point
from cdc.snapshot.read_point import ReadPoint
from cdc.table import TableName
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

SLOT = "interleaving"
SESSIONS = 3
KEYS = range(1, 5)
CHUNKS = ((1, 2), (3, 4))

Step = tuple[str, int, int]
"""What is done, by which session, to which key."""

_keys = st.sampled_from(KEYS)
_steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["insert", "update", "delete", "move"]),
            st.integers(0, SESSIONS - 1),
            _keys,
        ),
        st.tuples(
            st.sampled_from(["commit", "commit", "rollback", "savepoint", "undo", "prepare"]),
            st.integers(0, SESSIONS - 1),
            st.just(0),
        ),
        st.tuples(st.just("read"), st.just(0), st.just(0)),
    ),
    min_size=8,
    max_size=30,
)


class Writers:
    """Sessions with a transaction each, which do one step at a time."""

    def __init__(self, dsn: str) -> None:
        self._open = [psycopg.connect(dsn) for _ in range(SESSIONS)]
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._prepared: list[str] = []
        self._number = 0
        for connection in self._open:
            connection.execute("SET lock_timeout = '20ms'")
            connection.commit()

    def close(self) -> None:
        for connection in (*self._open, self._admin):
            connection.close()

    def step(self, what: str, session: int, key: int) -> None:
        connection = self._open[session]
        try:
            getattr(self, f"_{what}")(connection, key)
        except (errors.LockNotAvailable, errors.UniqueViolation, errors.DeadlockDetected):
            connection.rollback()
        except errors.InvalidSavepointSpecification:
            connection.rollback()

    def end(self) -> None:
        for connection in self._open:
            connection.commit()
        for name in self._prepared:
            self._admin.execute(f"COMMIT PREPARED '{name}'")
        self._prepared.clear()

    def _insert(self, connection: psycopg.Connection, key: int) -> None:
        self._number += 1
        connection.execute("INSERT INTO t VALUES (%s, %s)", (key, self._number))

    def _update(self, connection: psycopg.Connection, key: int) -> None:
        self._number += 1
        connection.execute("UPDATE t SET n = %s WHERE id = %s", (self._number, key))

    def _delete(self, connection: psycopg.Connection, key: int) -> None:
        connection.execute("DELETE FROM t WHERE id = %s", (key,))

    def _move(self, connection: psycopg.Connection, key: int) -> None:
        connection.execute("UPDATE t SET id = %s WHERE id = %s", (5 - key, key))

    def _commit(self, connection: psycopg.Connection, _: int) -> None:
        connection.commit()

    def _rollback(self, connection: psycopg.Connection, _: int) -> None:
        connection.rollback()

    def _savepoint(self, connection: psycopg.Connection, _: int) -> None:
        connection.execute("SAVEPOINT a")

    def _undo(self, connection: psycopg.Connection, _: int) -> None:
        connection.execute("ROLLBACK TO SAVEPOINT a")

    def _prepare(self, connection: psycopg.Connection, _: int) -> None:
        """Prepares what was written; the one before it is committed."""
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
            return
        self._number += 1
        name = f"{SLOT}_{self._number}"
        connection.execute(f"PREPARE TRANSACTION '{name}'")
        connection.commit()
        for older in self._prepared:
            self._admin.execute(f"COMMIT PREPARED '{older}'")
        self._prepared = [name]


class Reader:
    """Reads the table chunk by chunk, one step at a time, the first chunk twice."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        root = read_point.oid(connection, TableName("public", "t"))
        assert root is not None
        self._root = root
        self._point: ReadPoint | None = None
        self._left = [*CHUNKS[:1], *CHUNKS]
        self.rows: list[tuple[int, int, int]] = []

    def step(self) -> bool:
        if self._point is None:
            self._point = ReadPoint(self._connection, self._root)
        elif self._left and self._point.reached():
            found = self._connection.execute(
                "SELECT id, n FROM t WHERE id BETWEEN %s AND %s", self._left.pop(0)
            )
            self.rows += [(self._point.position.value, key, n) for key, n in found.fetchall()]
        return bool(self._left)


@pytest.fixture
def admin(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        connection.execute("CREATE PUBLICATION t FOR TABLE t")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        yield connection


@settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=_steps)
# a transaction that had written changes its session while it is waited for
@example(
    steps=[
        ("update", 0, 2),
        ("read", 0, 0),
        ("prepare", 0, 0),
        *[("read", 0, 0)] * 4,
    ]
)
# the first record after the position is the change that the read does not see
@example(steps=[("read", 0, 0), *[("read", 0, 0)] * 3, ("update", 0, 2), ("commit", 0, 0)])
def test_a_read_loses_to_what_it_has_not_seen_and_wins_against_what_is_older(
    admin: psycopg.Connection, database: str, steps: list[Step]
) -> None:
    admin.execute("TRUNCATE t")
    admin.execute("INSERT INTO t VALUES (2, 0), (4, 0)")
    _changes(admin)
    writers, reader = Writers(database), Reader(admin)
    try:
        for what, session, key in steps:
            if what == "read":
                reader.step()
            else:
                writers.step(what, session, key)
        writers.end()
    finally:
        writers.close()
    while reader.step():
        pass

    found: dict[int, tuple[int, int | None]] = {}
    changes = _changes(admin)
    event(f"changes {min(len(changes), 5)}")
    # what was read comes first, so that a change at the same position would be lost
    for lsn, key, n in [*reader.rows, *changes]:
        if lsn > found.get(key, (0, None))[0]:
            found[key] = lsn, n
    rows = dict(admin.execute("SELECT id, n FROM t").fetchall())

    assert rows == {key: n for key, (_, n) in found.items() if n is not None}


def _changes(connection: psycopg.Connection) -> list[tuple[int, int, int | None]]:
    """Takes from the slot: position, key, and the value, None of a deleted row."""
    rows = connection.execute(
        "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 't')",
        (SLOT,),
    ).fetchall()
    found: list[tuple[int, int, int | None]] = []
    for lsn, data in rows:
        position = Lsn.parse(lsn).value
        kind, rest = data[:1], data[5:]
        if kind == b"I":
            (key, n), _ = _tuple(rest[1:])
            found.append((position, key, n))
        elif kind == b"D":
            (key, *_), _ = _tuple(rest[1:])
            found.append((position, key, None))
        elif kind == b"U":
            if rest[:1] != b"N":
                (old, *_), rest = _tuple(rest[1:])
                found.append((position, old, None))
            (key, n), _ = _tuple(rest[1:])
            found = [one for one in found if one != (position, key, None)]
            found.append((position, key, n))
    return found


def _tuple(data: bytes) -> tuple[list[Any], bytes]:
    """Reads a row of integers; returns what comes after it, too."""
    (count,) = struct.unpack_from(">h", data)
    at, values = 2, []
    for _ in range(count):
        kind = data[at : at + 1]
        at += 1
        if kind != b"t":
            values.append(None)
            continue
        (size,) = struct.unpack_from(">i", data, at)
        values.append(int(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return values, data[at:]
