"""Deletion of a stream: its events are gone, its version and the reason stay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from eventstore import EventStore
from eventstore.errors import CompactionError, WrongExpectedVersionError
from eventstore.postgres.audit import PostgresAudit
from eventstore.postgres.retention import PostgresRetention
from headwater.cli import main
from tests.fix_counters import ORIGINALS, STREAM, Added, Counter, Streams, types

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

REASON = "request 4711 of the data protection officer"


@pytest.fixture
def keeper(streams: Streams) -> PostgresRetention:
    return PostgresRetention(streams.dsn, events_max=3)


def seal(streams: Streams) -> PostgresAudit:
    audit = PostgresAudit(streams.dsn, block=4)
    audit.seal()
    return audit


@pytest.mark.parametrize("compacted", [0, 4, 8], ids=["whole", "compacted", "wholly compacted"])
def test_a_stream_is_deleted_whatever_it_was(streams, keeper, compacted):
    streams.append(*map(Added, range(8)))
    streams.append(Added(1), stream="counter-2")
    if compacted:
        streams.compact(compacted)
    audit = seal(streams)
    head = audit.head()

    done = keeper.delete_stream("default", STREAM, reason=REASON)

    (stands,) = streams.read()
    assert 8 == done
    assert (8, "$snapshot") == (stands.stream_position, stands.type)
    assert REASON == json.loads(stands.data)["deleted"]
    assert [] == streams.read(ORIGINALS)
    assert Counter(1, 1) == streams.state("counter-2")
    assert () == audit.verify(head).findings
    with psycopg.connect(streams.dsn) as connection:
        kept = {
            table: connection.execute(f"SELECT count(*) FROM eventstore.{table}").fetchone()  # noqa: S608
            for table in ("archived_events", "snapshots", "event_tags")
        }
    assert {"archived_events": (0,), "snapshots": (0,), "event_tags": (1,)} == kept


def test_a_deleted_stream_keeps_its_version_and_cannot_be_folded(streams, keeper):
    streams.append(*map(Added, range(3)))
    seal(streams)
    keeper.delete_stream("default", STREAM, reason=REASON)
    store = EventStore(streams.log, types=types, deciders=[streams.fold.decider])

    with pytest.raises(CompactionError):
        store.state(streams.fold.decider, STREAM.partition("-")[2])
    with pytest.raises(WrongExpectedVersionError):
        streams.append(Added(1), expected=0)
    assert 3 == streams.log.stream_version("default", STREAM)


def test_a_deletion_may_be_repeated(streams, keeper):
    streams.append(*map(Added, range(3)))
    audit = seal(streams)
    first = keeper.delete_stream("default", STREAM, reason=REASON)
    again = keeper.delete_stream("default", STREAM, reason="another")

    assert (3, 0) == (first, again)
    assert () == audit.verify().findings


def test_what_is_not_sealed_is_not_deleted(streams, keeper):
    streams.append(*map(Added, range(3)))
    before = streams.read()
    with pytest.raises(CompactionError, match="not sealed") as refused:
        keeper.delete_stream("default", STREAM, reason=REASON)

    assert "headwater events seal" == refused.value.hint
    assert before == streams.read()


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501])
def test_a_deletion_without_a_reason_is_refused(streams, keeper, reason):
    streams.append(Added(1))
    with pytest.raises(CompactionError, match="needs a reason"):
        keeper.delete_stream("default", STREAM, reason=reason)


def test_a_stream_that_is_not_there_is_told(keeper):
    with pytest.raises(CompactionError, match="does not exist"):
        keeper.delete_stream("default", STREAM, reason=REASON)


def test_retention_keys_and_deletion_from_the_command_line(
    streams, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        code = main(["events", *words, "--dsn", streams.dsn])
        return code, capsys.readouterr().out

    streams.append(*map(Added, range(3)))
    streams.append(*map(Added, range(2)), stream="counter-2")
    with psycopg.connect(streams.dsn) as connection:
        connection.execute(
            "INSERT INTO eventstore.idempotency_keys"
            " (tenant, key, digest, versions, global_position, transaction_id, recorded_at)"
            " VALUES ('default', 'k', sha256(''), '{1}', 1, 1, now() - interval '9 days')"
        )
    closing = ("--closing", "counter.added", "--compact-after-days", "0")
    closed = run("retain", "counter", *closing, "--drop-after-days", "0", "--json")
    seal(streams)
    counted = run("retain", "counter", "--drop-after-days", "0", "--json")
    unsure = [run("forget-keys", "--older-than-days", "7"), run("delete", STREAM, "--reason", "x")]
    forgotten = run("forget-keys", "--older-than-days", "7", "--yes")
    deleted = run("delete", STREAM, "--reason", REASON, "--yes")
    dropped = run("retain", "counter", "--drop-after-days", "0", "--yes", "--json")

    assert (0, 2, 5) == (closed[0], *(json.loads(closed[1])[k] for k in ("streams", "archived")))
    assert (0, 5) == (counted[0], json.loads(counted[1])["droppable"])
    assert [2, 2] == [code for code, _ in unsure]
    assert (0, "1 key forgotten\n") == forgotten
    assert (0, "3 events deleted\n") == deleted
    assert (0, 2) == (dropped[0], json.loads(dropped[1])["dropped"])
