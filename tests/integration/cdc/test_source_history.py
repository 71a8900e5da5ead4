"""What becomes of a capture when its server is restored, fails over, or gives the slot up."""

from __future__ import annotations

import shutil
import signal
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc import source
from cdc.connect.rest import ConnectRest
from cdc.continuity import errors
from cdc.lsn import Lsn
from cdc.postgres import captures, pressure, session, slot
from cdc.postgres.pressure import Level
from cdc.snapshot import reader
from tests.fix_capture import Captured, guarding, wait_until_streaming
from tests.fix_standby import free_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cdc.lsn import Lsn
    from tests.fix_standby import Cluster, Clusters

pytestmark = pytest.mark.integration

MIB = 1024 * 1024


@pytest.fixture
def shop(clusters: Clusters, capture: Callable[..., Captured]) -> Callable[..., Any]:
    """Starts a server, captures a table in it, and leaves something in Kafka and confirmed."""

    def make(*, guarded: bool = True, **options: str) -> tuple[Cluster, Captured]:
        cluster = clusters.start(**options)
        cluster.execute("CREATE DATABASE shop")
        dsn = cluster.dsn("shop")
        cluster.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)", database="shop")
        captured = capture("public.notes", dsn=dsn, guarded=guarded)
        captured.execute("INSERT INTO notes VALUES (1, 'first')")
        _confirmed(captured)
        return cluster, captured

    return make


def test_a_slot_that_the_server_gives_up_is_told_before_and_named_afterwards(
    shop: Callable[..., tuple[Cluster, Captured]],
) -> None:
    """By the size of the log, and by the slot's age."""
    cluster, captured = shop(max_slot_wal_keep_size="32MB", min_wal_size="32MB")
    spec = captured.spec
    with session.connect(spec.dsn) as connection:
        found = wait_until(  # a busy machine may be late with the first heartbeats
            lambda: pressure.look(connection, spec.slot),
            "a slot that moves",
            accept=lambda seen: seen is not None and seen.moves and seen.level is Level.OK,
        )
        assert found is not None
        assert 32 * MIB == found.keep_bytes
        source.pause(spec)
        _write(cluster, 8)
        found = pressure.look(
            connection, spec.slot, before=captures.noted_wal(connection, spec.name)
        )
        assert found is not None
        assert (Level.DANGER, False) == (found.level, found.moves)
        assert found.given_up_in_s is not None
        _write(cluster, 64)
        connection.execute("CHECKPOINT")
        lost = slot.status(connection, spec.slot)
        assert lost is not None
        assert lost.lost
    _refused(captured, errors.SlotInvalidatedError)
    _repaired(captured, {1, 2})

    _confirmed(captured)
    source.pause(spec)
    cluster.execute(
        "ALTER SYSTEM SET idle_replication_slot_timeout = '1s'", "SELECT pg_reload_conf()"
    )
    with session.connect(spec.dsn) as connection:
        wait_until(lambda: _idle_s(connection, spec.slot) > 1.5)
        connection.execute("CHECKPOINT")
        lost = slot.status(connection, spec.slot)
        assert lost is not None
        assert lost.invalidation == "idle_timeout"
    cluster.execute("ALTER SYSTEM RESET idle_replication_slot_timeout", "SELECT pg_reload_conf()")
    _refused(captured, errors.SlotInvalidatedError)
    _repaired(captured, {1, 2, 3})


def test_a_source_restored_to_an_earlier_time_is_named_though_it_has_gone_on_since(
    shop: Callable[..., tuple[Cluster, Captured]], tmp_path: Path
) -> None:
    cluster, captured = shop()
    spec, kept = captured.spec, tmp_path / "kept"
    source.pause(spec)
    cluster.stop()
    cluster.copy_to(kept)
    cluster.start()
    source.resume(spec)
    captured.execute("INSERT INTO notes VALUES (2, 'will be gone'), (3, 'too')")
    _confirmed(captured)
    source.pause(spec)

    cluster.stop()
    shutil.rmtree(cluster.data)
    kept.rename(cluster.data)
    cluster.start()

    with closing(ConnectRest(spec.connect_url)) as rest:
        reached = rest.captured_through(spec.connector)
    loss = source.loss(spec)
    assert loss is not None
    assert errors.SourceRestoredError is loss.kind
    assert reached is not None
    while _end(spec.dsn) <= reached:  # as a source that was used again before anybody looked
        _write(cluster, 16)
    captured.execute("INSERT INTO notes VALUES (4, 'on another history')")
    refused = _refused(captured, errors.SourceRestoredError)
    assert "heartbeat" in refused.message + str(refused.detail)
    _repaired(captured, {1, 4, 2}, body="of the repair")


def test_a_failover_to_a_standby_with_the_slot_goes_on_and_loses_nothing(
    shop: Callable[..., tuple[Cluster, Captured]], clusters: Clusters
) -> None:
    cluster, captured = shop()
    spec = captured.spec
    standby = clusters.join(
        cluster.standby(clusters.folder("standby"), free_port(), sync_replication_slots="on")
    )
    cluster.execute(
        "ALTER SYSTEM SET synchronized_standby_slots = 'standby'", "SELECT pg_reload_conf()"
    )
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        wait_until(lambda: _synced(connection, spec.slot))
    captured.execute("INSERT INTO notes VALUES (2, 'before the failover')")
    _confirmed(captured)

    cluster.stop(signal.SIGQUIT)
    standby.promote()
    moved = replace(spec, dsn=standby.dsn("shop"))
    changes = source.apply(moved)

    assert any("database.port" in change or "changed" in change for change in changes)
    after = Captured(moved, moved.dsn)
    with guarding(moved):
        after.execute("INSERT INTO notes VALUES (3, 'after it')")
        assert {(1,), (2,), (3,)} == set(after.rows("notes"))
    with session.connect(moved.dsn) as connection:
        noted = captures.find(connection, moved.name)
    assert noted is not None
    assert (1, 2, None) == (noted.epoch, noted.timeline, noted.lost)
    assert source.status(moved).healthy
    source.remove(moved)


def test_a_failover_to_a_standby_without_the_slot_is_refused_and_repaired(
    shop: Callable[..., tuple[Cluster, Captured]], clusters: Clusters
) -> None:
    cluster, captured = shop()
    spec = captured.spec
    standby = clusters.join(cluster.standby(clusters.folder("standby"), free_port()))
    captured.execute("INSERT INTO notes VALUES (2, 'before the failover')")
    _confirmed(captured)
    with psycopg.connect(standby.dsn("shop"), autocommit=True) as connection:
        wait_until(lambda: _count(connection) == 2)
    cluster.stop(signal.SIGQUIT)
    standby.promote()
    standby.execute(
        "DELETE FROM notes WHERE id = 1",
        "INSERT INTO notes VALUES (3, 'nobody has seen it')",
        database="shop",
    )
    moved = replace(spec, dsn=standby.dsn("shop"))

    _refused(Captured(moved, moved.dsn), errors.FailoverWithoutSlotError)
    _repaired(Captured(moved, moved.dsn), {2, 3, 4}, new=4)
    source.remove(moved)


def test_another_database_is_not_taken_for_the_captured_one(
    shop: Callable[..., tuple[Cluster, Captured]], database: str
) -> None:
    _, captured = shop(guarded=False)  # whoever watches over the other one would stop this one
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
        connection.execute("INSERT INTO notes VALUES (9, 'elsewhere')")
    source.pause(captured.spec)
    elsewhere = Captured(replace(captured.spec, dsn=database), database)

    _refused(elsewhere, errors.OtherServerError)
    _repaired(elsewhere, {9, 2})
    source.remove(elsewhere.spec)


def test_an_idle_database_beside_a_busy_one_frees_the_log(
    shop: Callable[..., tuple[Cluster, Captured]],
) -> None:
    cluster, captured = shop()
    spec = captured.spec
    cluster.execute("CREATE DATABASE busy")
    with session.connect(spec.dsn) as connection:

        def retained() -> int:
            # what the server does by itself every 15 seconds while the log grows
            connection.execute("SELECT pg_log_standby_snapshot()")
            found = slot.status(connection, spec.slot)
            assert found is not None
            return found.retained_bytes

        source.pause(spec)
        _write(cluster, 48, database="busy")
        assert retained() > 48 * MIB
        source.resume(spec)
        for _ in range(2):
            wait_until(lambda: retained() < 8 * MIB)
            _write(cluster, 48, database="busy")
        wait_until(lambda: retained() < 8 * MIB)


def _refused(captured: Captured, kind: type[errors.ContinuityError]) -> errors.ContinuityError:
    for go_on in (source.apply, source.resume):
        with pytest.raises(kind) as refused:
            go_on(captured.spec)
        assert errors.REPAIR == refused.value.hint
    return refused.value


def _repaired(
    captured: Captured, expected: set[int], *, new: int | None = None, body: str = "new"
) -> None:
    """Repairs, and compares all that Kafka then says with the source."""
    source.repair(captured.spec)
    wait_until_streaming(captured.spec)
    assert reader.run(captured.spec) == 1
    with session.connect(captured.database) as connection:
        ids = {row[0] for row in connection.execute("SELECT id FROM notes").fetchall()}
        number = new or min(set(range(2, 9)) - ids)
        connection.execute("INSERT INTO notes VALUES (%s, %s)", (number, body))
        rows = dict(connection.execute("SELECT id, body FROM notes WHERE id > 0").fetchall())
    assert expected == set(rows)
    found = {key: row["body"] for (key,), row in captured.rows("notes").items()}
    assert rows == found
    captured.execute("DELETE FROM notes WHERE id = -1")  # the mark


def _confirmed(captured: Captured) -> None:
    """Waits until Kafka has everything, and the slot knows."""
    end = _end(captured.database)
    with session.connect(captured.database) as connection:
        wait_until(
            lambda: (
                (found := slot.status(connection, captured.spec.slot)) is not None
                and found.confirmed_flush_lsn is not None
                and found.confirmed_flush_lsn > end
            )
        )


def _write(cluster: Cluster, mib: int, database: str = "shop") -> None:
    with psycopg.connect(cluster.dsn(database), autocommit=True) as connection:
        for _ in range(mib):
            connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1048576))")


def _end(dsn: str) -> Lsn:
    with session.connect(dsn) as connection:
        return pressure.sample(connection).end_lsn


def _idle_s(connection: psycopg.Connection[Any], name: str) -> float:
    found = slot.status(connection, name)
    assert found is not None
    assert found.inactive_since is not None
    return (pressure.sample(connection).at - found.inactive_since).total_seconds()


def _synced(connection: psycopg.Connection[Any], name: str) -> bool:
    connection.execute("SELECT pg_reload_conf()")  # wakes what looks by itself twice a minute
    row = connection.execute(
        "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s", (name,)
    ).fetchone()
    return bool(row and row[0])


def _count(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT count(*) FROM notes").fetchone()
    return int(row[0]) if row else 0
