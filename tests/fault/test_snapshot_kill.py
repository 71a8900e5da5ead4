"""Readers killed at seeded points, among writers of every kind, and Connect killed beside them."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson
import psutil
import psycopg
import pytest

from cdc import source
from cdc.capture import CaptureSpec
from cdc.connect.errors import ConnectUnavailableError
from cdc.envelope import Operation
from cdc.postgres import session
from cdc.snapshot import reader, reads
from cdc.snapshot.reads import SnapshotRequest
from cdc.table import TableName
from cdc.values import UNCHANGED_PLACEHOLDER
from tests.fix_capture import Captured, event_of, wait_until_streaming
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.runtime import Endpoints

pytestmark = [pytest.mark.integration, pytest.mark.fault]

ROWS = 60_000
CHUNK = 1_000
RANGE = 4_000
KILLS = 5
CHUNKS = ROWS // CHUNK // (KILLS + 1)
SEED = 20261121
TABLE = TableName("public", "wide")

# chunks so small that there are many of them in which to be killed
READER = f"""
import json, sys, threading
from cdc.capture import CaptureSpec
from cdc.snapshot import chunk, ranges, reader
from cdc.table import TableName
chunk.ROWS_MAX = chunk._ROWS_FIRST = {CHUNK}
ranges.RANGE_ROWS = {RANGE}
fields, left = json.loads(sys.argv[1]), int(sys.argv[2])
read_range = chunk.read_range
def counted(*given):
    # whoever is to kill this process may be slow: it must not be done by then
    global left
    left -= 1
    if left < 0:
        threading.Event().wait()
    return read_range(*given)
chunk.read_range = counted
tables = tuple(TableName(*table) for table in fields.pop("tables"))
reader.keep_reading(CaptureSpec(tables=tables, **fields))
"""


class Traffic:
    """Writers that insert, update, delete, and move rows to other keys, the large values kept."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(Random(seed + n),))  # noqa: S311
            for n in range(2)
        ]

    def __enter__(self) -> Traffic:  # noqa: PYI034
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, chance: Random) -> None:
        with psycopg.connect(self._dsn) as connection:
            while not self._stop.wait(0.01):
                for _ in range(chance.randint(1, 6)):
                    self._change(connection, chance)
                if chance.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()

    def _change(self, connection: psycopg.Connection, chance: Random) -> None:
        one, other = chance.randint(1, ROWS), chance.randint(1, 2 * ROWS)
        what = chance.choice(["insert", "update", "update", "large", "delete", "move", "move"])
        statement = {
            "insert": "INSERT INTO wide SELECT %(other)s, 'new', large(%(other)s)"
            " ON CONFLICT DO NOTHING",
            "update": "UPDATE wide SET word = 'again' || %(other)s WHERE id = %(one)s",
            "large": "UPDATE wide SET body = large(%(other)s) WHERE id = %(one)s",
            "delete": "DELETE FROM wide WHERE id = %(one)s",
            "move": "UPDATE wide SET id = %(other)s WHERE id = %(one)s"
            " AND NOT EXISTS (SELECT FROM wide WHERE id = %(other)s)",
        }[what]
        try:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '100ms'")
                connection.execute(statement, {"one": one, "other": other})
        except (psycopg.errors.UniqueViolation, psycopg.OperationalError):
            return  # a savepoint: what was done before in the transaction stays


class Fold:
    """What the records of a topic come to, in their order: the newest version of each key.

    A value that an update left alone is that of the row before it, if the log has that; else the
    key lacks it, until a read brings it.
    """

    def __init__(self) -> None:
        self.operations: Counter[Operation] = Counter()
        self._rows: dict[int, tuple[int, dict[str, Any] | None]] = {}
        self._moved: dict[int, tuple[int, dict[str, Any]]] = {}
        self._came: dict[int, bool] = {}

    def take(self, record: Any) -> None:
        change = event_of(record)
        self.operations[change.operation] += 1
        assert change.key is not None
        key, version = change.key["id"], change.position.version
        before, stored = self._rows.get(key, (0, None))
        if change.after is None:
            if version > before:
                self._moved[key] = before, stored or {}
                self._rows[key] = version, None
            return
        row = dict(change.after)
        if version > before:
            base, came = stored or {}, _old_key(record)
            if came is not None:
                left, base = self._moved.get(came, (1, {}))
                # a row that was read may have come to the key after this one had left it
                base = {} if left % 8 else base
            self._came[key] = came is not None
            self._rows[key] = version, _filled(row, base)
        elif change.operation is Operation.READ and stored is not None and not self._came[key]:
            self._rows[key] = before, _filled(stored, row)

    def lacking(self) -> list[int]:
        return [key for key, row in self.rows().items() if UNCHANGED_PLACEHOLDER in row]

    def rows(self) -> dict[int, tuple[str, str]]:
        return {
            key: (row["word"], row["body"])
            for key, (_, row) in self._rows.items()
            if row is not None and key > 0
        }


def _filled(row: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    kept = [name for name, value in row.items() if value == UNCHANGED_PLACEHOLDER]
    return row | {name: base[name] for name in kept if name in base}


def _old_key(record: Any) -> int | None:
    for name, value in record.headers:
        if name == "__debezium.oldkey":
            found = orjson.loads(value)
            return int(found.get("payload", found)["id"])
    return None


@contextmanager
def reading(spec: CaptureSpec, chunks: int) -> Iterator[subprocess.Popen[bytes]]:
    """A reader in a process of its own, which stands still after so many chunks.

    It is killed at the end of the block.
    """
    names = ("name", "dsn", "connect_url", "kafka_bootstrap", "epoch")
    fields: dict[str, Any] = {name: getattr(spec, name) for name in names}
    fields["tables"] = [[table.schema, table.name] for table in spec.tables]
    words = [sys.executable, "-c", READER, json.dumps(fields), str(chunks)]
    process = subprocess.Popen(words)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def kafka_bootstrap(own_servers: Endpoints) -> str:
    return own_servers.kafka_bootstrap


@pytest.fixture(scope="module")
def connect_url(own_servers: Endpoints) -> str:
    return own_servers.connect_url


@pytest.fixture
def wide(database: str, kafka_bootstrap: str, connect_url: str) -> Iterator[CaptureSpec]:
    """A captured table with large values, whose rows have not been read."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE wide (id int PRIMARY KEY, word text, body text);"  # noqa: S608
            "ALTER TABLE wide ALTER body SET STORAGE EXTERNAL;"
            "ALTER TABLE wide SET (toast_tuple_target = 128);"
            "CREATE FUNCTION large(n int) RETURNS text LANGUAGE sql"
            " AS $$ SELECT CASE WHEN n % 8 = 0 THEN repeat(n::text || '-', 500) ELSE 'b' || n END"
            " $$;"
            "INSERT INTO wide"
            f" SELECT g, 'old', large(g) FROM generate_series(1, {ROWS}) AS g;"
            "ANALYZE wide"
        )
    spec = CaptureSpec(f"k{secrets.token_hex(4)}", database, (TABLE,), connect_url, kafka_bootstrap)
    source.apply(spec)
    wait_until_streaming(spec)
    yield spec
    source.remove(spec, with_topics=True)


def test_a_killed_reader_is_followed_by_one_that_goes_on_and_the_log_comes_to_the_table(
    wide: CaptureSpec,
) -> None:
    chance = Random(SEED)  # noqa: S311
    noted, positions = [0], set()
    with session.connect(wide.dsn) as connection:
        with Traffic(wide.dsn, SEED):
            for number in range(KILLS):
                more = chance.randint(1, ROWS // KILLS // 4)
                with reading(wide, CHUNKS) as process:
                    _until_read(connection, wide, noted[-1] + more)
                    with pytest.raises(subprocess.TimeoutExpired):
                        process.wait(chance.random() * 0.1)  # to be anywhere in a chunk
                    if number == KILLS // 2:
                        _kill_worker(wide.connect_url)
                (found,) = reads.of_source(connection, wide.name, wide.epoch)
                noted.append(found.rows_read)
                positions.add(found.read_lsn)
                assert not found.done
            _apply_when_back(wide)
            reader.run(wide)
        (found,) = reads.of_source(connection, wide.name, wide.epoch)
        fold = _topic(wide, -1)
        lacking = fold.lacking()
        if lacking:
            request = SnapshotRequest(TABLE, keys=tuple((str(key),) for key in lacking))
            reads.ask(connection, wide.name, wide.epoch, request)
            reader.run(wide)
        rows = connection.execute("SELECT id, word, body FROM wide WHERE id > 0").fetchall()

    assert noted == sorted(noted)
    assert (True, {found.read_lsn}) == (found.done, positions)
    sent = fold.operations[Operation.READ]
    assert found.rows_read <= sent <= found.rows_read + KILLS * wide.snapshot_workers * CHUNK
    assert {key: (word, body) for key, word, body in rows} == _topic(wide, -2).rows()
    print(f"{sent} rows sent of {found.rows_read}, {len(lacking)} keys repaired")  # noqa: T201


def _topic(spec: CaptureSpec, mark: int) -> Fold:
    """Folds the whole topic, up to a row that is inserted now."""
    captured, fold = Captured(spec, spec.dsn), Fold()
    captured.execute(f"INSERT INTO wide VALUES ({mark}, '', '')")  # noqa: S608
    key = b'{"id":%d}' % mark
    for record in captured.read(TABLE.topic(spec.name), lambda r: r.key == key, timeout_s=120):
        if record.value is not None:
            fold.take(record)
    return fold


def _until_read(connection: psycopg.Connection, spec: CaptureSpec, rows: int) -> None:
    found = wait_until(
        lambda: reads.of_source(connection, spec.name, spec.epoch)[0],
        f"a read that has {rows} rows",
        accept=lambda read: read.rows_read >= rows or read.done,
        pause_s=0.005,
    )
    assert not found.done


def _apply_when_back(spec: CaptureSpec) -> None:
    """Goes on where Connect stopped; it may still be starting."""

    def applied() -> bool:
        with suppress(ConnectUnavailableError):
            source.apply(spec)
            return True
        return False

    wait_until(applied, "Connect to be back", timeout_s=LONG_S)


def _kill_worker(url: str) -> None:
    """Kills Connect; its supervisor starts it again."""
    port = urlsplit(url).port
    (pid,) = {
        found.pid
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr.port == port
    }
    process = psutil.Process(pid)
    process.kill()
    psutil.wait_procs([process], timeout=10)
