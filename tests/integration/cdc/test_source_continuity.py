from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc import source
from cdc.broker.client.admin import admin
from cdc.broker.topics import offsets, topics
from cdc.capture import HEARTBEAT_TABLE
from cdc.connect import supervision
from cdc.connect.errors import ConnectorFailedError
from cdc.connect.rest import ConnectRest
from cdc.continuity import Guard, errors
from cdc.postgres import captures, session, slot
from cdc.postgres.errors import PublicationDriftError
from cdc.snapshot import reader
from cdc.table import TableName
from tests.fix_capture import Captured
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.postgres.slot import SlotStatus
    from tests.fix_worker import Worker

pytestmark = pytest.mark.integration

TABLE = "CREATE TABLE notes (id int PRIMARY KEY, body text)"


@pytest.fixture
def notes(database: str, capture: Callable[..., Captured]) -> Captured:
    """A captured table, of which something has reached Kafka and been confirmed."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("INSERT INTO notes VALUES (1, 'first')")
    captured = capture("public.notes")
    with closing(ConnectRest(captured.spec.connect_url)) as rest:
        wait_until(lambda: rest.captured_through(captured.spec.connector), "a stored offset")
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


def recreate(notes: Captured) -> None:
    slot = notes.spec.slot
    notes.execute(
        f"SELECT pg_drop_replication_slot('{slot}')",
        "INSERT INTO notes VALUES (2, 'would be missing')",
        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', failover => true)",
    )


def drop(notes: Captured) -> None:
    notes.execute(f"SELECT pg_drop_replication_slot('{notes.spec.slot}')")


def move(notes: Captured) -> None:
    notes.execute(
        "INSERT INTO notes VALUES (2, 'would be missing')",
        f"SELECT pg_replication_slot_advance('{notes.spec.slot}', pg_current_wal_lsn())",
    )


def forget_offsets(notes: Captured) -> None:
    with closing(ConnectRest(notes.spec.connect_url)) as rest:
        rest.delete_offsets(notes.spec.connector)


def recreate_topic(notes: Captured) -> None:
    spec = notes.spec
    wanted = [topic for topic in source.topic_specs(spec) if topic.name.endswith(".notes")]
    topics.delete(spec.kafka_bootstrap, [topic.name for topic in wanted])
    wait_until(
        lambda: topics.names(spec.kafka_bootstrap) & {topic.name for topic in wanted},
        "no such topic any more",
        accept=lambda left: not left,
    )
    topics.ensure(spec.kafka_bootstrap, wanted)


@pytest.mark.parametrize(
    ("lose", "kind"),
    [
        (drop, errors.SlotDroppedError),
        (recreate, errors.SlotRecreatedError),
        (move, errors.SlotMovedError),
        (forget_offsets, errors.OffsetsGoneError),
        (recreate_topic, errors.TopicsRecreatedError),
    ],
)
def test_what_loses_changes_has_a_name_and_is_refused_until_it_is_repaired(
    notes: Captured, lose: Callable[[Captured], None], kind: type[errors.ContinuityError]
) -> None:
    """Nothing of it is repaired by itself, whoever asks how often."""
    source.pause(notes.spec)
    lose(notes)
    assert kind.code == getattr(source.status(notes.spec).loss, "code", None)
    for go_on in (source.resume, source.apply, source.resume):
        with pytest.raises(kind) as refused:
            go_on(notes.spec)
        assert refused.value.hint == errors.REPAIR
    status = source.status(notes.spec)
    assert (False, kind.code) == (status.healthy, getattr(status.loss, "code", None))

    source.repair(notes.spec)

    assert 1 == reader.run(notes.spec)
    notes.execute("INSERT INTO notes VALUES (3, 'after')")
    expected = {1, 3} if lose in {drop, forget_offsets, recreate_topic} else {1, 2, 3}
    assert expected == {key for (key,) in notes.rows("notes")}
    assert source.status(notes.spec).healthy
    assert [] == source.apply(notes.spec)


def test_a_dropped_publication_is_refused(notes: Captured) -> None:
    source.pause(notes.spec)
    notes.execute(f"DROP PUBLICATION {notes.spec.publication}")
    with pytest.raises(PublicationDriftError, match="was dropped"):
        source.apply(notes.spec)


def test_a_table_that_leaves_the_publication_is_refused_and_one_that_comes_later_is_read(
    notes: Captured,
) -> None:
    notes.execute("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (7)")
    both = replace(notes.spec, tables=(*notes.spec.tables, TableName("public", "late")))
    assert "public.late is to be read" in source.apply(both)
    assert reader.run(both) == 1
    assert {(7,)} == set(Captured(both, notes.database).rows("late"))
    source.pause(both)
    notes.execute(f"ALTER PUBLICATION {both.publication} DROP TABLE late")
    with pytest.raises(PublicationDriftError) as refused:
        source.resume(both)
    assert "public.late" == refused.value.detail


def test_an_epoch_that_is_raised_by_hand_begins_anew_and_a_lower_one_changes_nothing(
    notes: Captured,
) -> None:
    anew = replace(notes.spec, epoch=5)
    assert f"dropped slot {anew.slot}" in source.apply(anew)
    assert reader.run(notes.spec) == 1
    events = notes.events("notes")
    assert [1, 5] == [event.position.epoch for event in events if event.snapshot]
    assert [] == source.apply(notes.spec)


def test_a_connector_that_starts_by_itself_does_not_stream_from_a_slot_that_nobody_has_looked_at(
    database: str, capture: Callable[..., Captured], worker: Worker
) -> None:
    """The worker is back before anybody of ours, and the slot is another one."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
    captured = capture("public.notes", guarded=False, connect_url=worker.url)
    captured.execute("INSERT INTO notes VALUES (1, 'first')")
    captured.records("notes")
    spec = captured.spec
    with session.connect(database) as connection, closing(ConnectRest(spec.connect_url)) as rest:
        wait_until(lambda: rest.captured_through(spec.connector) is not None)
        worker.kill()
        wait_until(lambda: not _slot(connection, spec).active)
        reached = _slot(connection, spec).confirmed_flush_lsn
        recreate(captured)
        stands = _slot(connection, spec).confirmed_flush_lsn
        worker.start()
        worker.await_answer()
        wait_until(lambda: (state := rest.state(spec.connector)) is not None and state.running)
        assert reached != stands
        before = _refusals(connection)
        # it runs, asks, is told no, and asks again: twice at least until it is looked at
        wait_until(lambda: _refusals(connection) > before + 1)
        assert (False, stands) == (
            _slot(connection, spec).active,
            _slot(connection, spec).confirmed_flush_lsn,
        )
        loss = Guard(spec).look(connection, rest)
        assert loss is not None
        assert errors.SlotRecreatedError.code == loss.code
        supervision.wait_stopped(rest, spec.connector, 30)
        assert loss.code == getattr(Guard(spec).look(connection, rest), "code", None)


def test_a_connector_makes_no_slot_by_itself(
    database: str, capture: Callable[..., Captured]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
    notes = capture("public.notes", guarded=False)
    spec = notes.spec
    with session.connect(notes.database) as connection:
        with closing(ConnectRest(spec.connect_url)) as rest:
            source.pause(spec)
            drop(notes)
            rest.delete_offsets(spec.connector)
            # as if somebody had let it pass
            connection.execute(
                "CREATE OR REPLACE FUNCTION headwater.may_stream(capture text)"
                " RETURNS bool"
                " LANGUAGE sql AS 'SELECT true'"
            )
            rest.resume(spec.connector)
            wait_until(lambda: bool((state := rest.state(spec.connector)) and state.failed))
            state = rest.state(spec.connector)
        assert state is not None
        assert "Creation of replication slot failed" in (state.failed[0].trace or "")
        assert None is slot.status(connection, spec.slot)


def test_a_heartbeat_that_never_arrives_stops_the_connector(notes: Captured) -> None:
    """Whatever took it, took the changes around it as well."""
    spec = notes.spec
    with session.connect(notes.database) as connection:
        wait_until(
            lambda: (
                (found := captures.find(connection, spec.name)) is not None
                and found.beat_number is not None
            )
        )
        with connection.transaction():
            # a change that the publication lets pass, as a loss on the way would
            connection.execute(f"ALTER PUBLICATION {spec.publication} SET (publish = 'insert')")
            connection.execute("UPDATE headwater.heartbeat SET number = number + 1")
        connection.execute(
            f"ALTER PUBLICATION {spec.publication}"
            " SET (publish = 'insert, update, delete, truncate')"
        )
        wait_until(lambda: getattr(captures.find(connection, spec.name), "lost", None) is not None)
    with closing(ConnectRest(spec.connect_url)) as rest:
        supervision.wait_stopped(rest, spec.connector, 30)
    with pytest.raises(errors.BeatMissingError):
        source.resume(spec)


def test_heartbeats_that_the_topic_has_let_go_are_not_missed(notes: Captured) -> None:
    """Nobody has looked for longer than the topic keeps them."""
    from kafka import TopicPartition

    spec = notes.spec
    topic = spec.table_topics[HEARTBEAT_TABLE]
    with session.connect(notes.database) as connection:

        def number() -> int:
            found = captures.find(connection, spec.name)
            assert found is not None
            assert found.lost is None
            return found.beat_number or 0

        wait_until(lambda: number() > 0)
        connection.execute("UPDATE headwater.captures SET beat_offset = 0, beat_number = 0")
        with admin(spec.kafka_bootstrap) as client:
            end = offsets.end_offsets(spec.kafka_bootstrap, [topic])[topic, 0]
            client.delete_records({TopicPartition(topic, 0): end})
        wait_until(lambda: number() > 1)


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
    wait_until(watch.look, "a refusal, which is raised", accept=lambda _: False)


def _slot(connection: Connection[Any], spec: CaptureSpec) -> SlotStatus:
    found = slot.status(connection, spec.slot)
    assert found is not None
    return found


def _refusals(connection: Connection[Any]) -> int:
    """Transactions of this database that the server has refused so far."""
    row = connection.execute(
        "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    return int(row[0]) if row else 0
