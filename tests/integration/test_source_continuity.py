from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cdc import source
from cdc.broker.tail import follow
from cdc.connect import supervision
from cdc.connect.errors import ConnectorFailedError
from cdc.connect.rest import ConnectRest
from cdc.errors import CaptureSpecError
from cdc.postgres.errors import PublicationDriftError, SlotError
from cdc.snapshot import reader
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_capture import Captured

pytestmark = pytest.mark.integration

TABLE = "CREATE TABLE notes (id int PRIMARY KEY, body text)"


@pytest.fixture
def notes(database: str, capture: Callable[..., Captured]) -> Captured:
    """A captured table, of which something has reached Kafka and been confirmed."""
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("INSERT INTO notes VALUES (1, 'first')")
    captured = capture("public.notes")
    with closing(ConnectRest(captured.spec.connect_url)) as rest:
        deadline = time.monotonic() + 60
        while rest.captured_through(captured.spec.connector) is None:
            assert time.monotonic() < deadline, "no offset is stored"
            time.sleep(0.1)
    return captured


def test_applying_again_changes_nothing(notes: Captured) -> None:
    assert [] == source.apply(notes.spec)
    assert source.status(notes.spec).healthy


def test_a_paused_capture_goes_on_where_it_stopped(notes: Captured) -> None:
    source.pause(notes.spec)
    paused = source.status(notes.spec)
    assert ("STOPPED", False) == (paused.connector_state, paused.healthy)
    notes.execute("INSERT INTO notes VALUES (2, 'while paused')")
    source.resume(notes.spec)
    assert [1, 2] == [event.key["id"] for event in notes.events("notes") if event.key]


def test_a_dropped_slot_is_refused_by_name_and_not_made_anew(notes: Captured) -> None:
    source.pause(notes.spec)
    notes.execute(f"SELECT pg_drop_replication_slot('{notes.spec.slot}')")
    for go_on in (source.resume, source.apply):
        with pytest.raises(SlotError, match="is gone"):
            go_on(notes.spec)
    assert source.status(notes.spec).slot is None


def test_a_slot_that_somebody_moved_is_refused(notes: Captured) -> None:
    source.pause(notes.spec)
    notes.execute(
        "INSERT INTO notes VALUES (2, 'would be missing')",
        f"SELECT pg_replication_slot_advance('{notes.spec.slot}', pg_current_wal_lsn())",
    )
    with pytest.raises(SlotError, match="somebody moved"):
        source.resume(notes.spec)


def test_a_dropped_publication_is_refused(notes: Captured) -> None:
    source.pause(notes.spec)
    notes.execute(f"DROP PUBLICATION {notes.spec.publication}")
    with pytest.raises(PublicationDriftError, match="is gone"):
        source.apply(notes.spec)


def test_a_table_that_comes_later_is_refused_until_the_epoch_is_raised(notes: Captured) -> None:
    notes.execute("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (7)")
    both = replace(notes.spec, tables=(*notes.spec.tables, TableName("public", "late")))
    with pytest.raises(PublicationDriftError) as refused:
        source.apply(both)
    assert "public.late" == refused.value.detail
    anew = replace(both, epoch=2)
    changes = source.apply(anew)
    assert f"removed slot {anew.slot}" in changes
    assert reader.run(anew) == 2
    first = next(follow(anew.kafka_bootstrap, [f"{anew.name}.public.late"], 60))
    assert (2, True, {"id": 7}) == (first.position.epoch, first.snapshot, first.after)
    with pytest.raises(CaptureSpecError, match="later epoch"):
        source.apply(notes.spec)


def test_a_failed_task_is_restarted_and_a_wrong_password_is_told_apart(notes: Captured) -> None:
    spec = notes.spec
    role = f"r_{spec.name}"
    notes.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'one'")
    with closing(ConnectRest(spec.connect_url)) as rest:
        config = rest.config(spec.connector)
        assert config is not None
        config.pop("name", None)
        rest.put_config(
            spec.connector, config | {"database.user": role, "database.password": "one"}
        )
        supervision.wait_running(rest, spec.connector, 60)
        source.pause(spec)
        notes.execute(f"ALTER ROLE {role} PASSWORD 'two'")
        rest.resume(spec.connector)
        with pytest.raises(ConnectorFailedError) as failed:
            _watch_until_refused(rest, spec.connector)
        assert "password authentication failed" in (failed.value.detail or "")
        assert not source.status(spec).healthy
        notes.execute(f"ALTER ROLE {role} PASSWORD 'one'")
        rest.restart(spec.connector)
        supervision.wait_running(rest, spec.connector, 60)
        rest.put_config(spec.connector, config)
        supervision.wait_running(rest, spec.connector, 60)
    notes.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER", f"DROP ROLE {role}")


def test_removing_leaves_nothing_behind_and_can_be_repeated(notes: Captured) -> None:
    gone = source.remove(notes.spec, with_topics=True)
    assert f"connector {notes.spec.connector}" in gone
    assert f"slot {notes.spec.slot}" in gone
    assert [] == source.remove(notes.spec, with_topics=True)
    left = source.status(notes.spec)
    assert ("MISSING", None, {}) == (left.connector_state, left.slot, left.end_offsets)


def _watch_until_refused(rest: ConnectRest, connector: str) -> None:
    watch = supervision.Watch(rest, connector)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        watch.look()
        time.sleep(0.1)
