"""The repair of a lost capture: everything is equal afterwards, whenever somebody was killed."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc import source
from cdc.capture import CaptureSpec
from cdc.connect.rest import ConnectRest
from cdc.continuity import begin, errors, repair
from cdc.postgres import captures, own_schema, publication, session, slot
from cdc.snapshot import reader, reads
from cdc.table import TableName
from cdc.upkeep import reconcile
from tests.fix_capture import Captured
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration

NOTES = TableName("public", "notes")


@pytest.fixture
def notes(database: str, capture: Callable[..., Captured]) -> Captured:
    """Five rows in Kafka; then the slot is lost, and every kind of change happens unseen."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
        connection.execute("INSERT INTO notes SELECT n, 'old' FROM generate_series(1, 5) AS n")
    captured = capture("public.notes")
    captured.execute("UPDATE notes SET body = 'streamed' WHERE id = 5")
    assert 5 == len(captured.rows("notes"))
    source.pause(captured.spec)
    captured.execute(
        f"SELECT pg_drop_replication_slot('{captured.spec.slot}')",
        "UPDATE notes SET body = 'unseen' WHERE id = 1",
        "DELETE FROM notes WHERE id IN (2, 3)",
        "INSERT INTO notes VALUES (6, 'unseen')",
    )
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO headwater.view_positions"
            " VALUES ('notes', 'cache', %s, pg_current_wal_lsn(), now())",
            (captured.spec.name,),
        )
    return captured


def test_what_was_changed_unseen_is_there_after_a_repair_and_what_was_deleted_is_not(
    notes: Captured,
) -> None:
    plan = source.plan_repair(notes.spec)
    assert (errors.SlotDroppedError, 1, 2) == (
        plan.loss and plan.loss.kind,
        plan.epoch,
        plan.becomes,
    )
    assert {"read public.notes as a whole", "raise the epoch from 1 to 2"} <= set(plan.steps)
    with session.connect(notes.database) as connection:
        assert getattr(captures.find(connection, notes.spec.name), "repairing", 0) is None
    said: list[str] = []

    done = source.repair(notes.spec, said.append)

    assert said == done
    notes.execute("UPDATE notes SET body = 'after' WHERE id = 4")
    assert 1 == reader.run(notes.spec)
    _equal(notes)
    with session.connect(notes.database) as connection:
        positions = connection.execute("SELECT 1 FROM headwater.view_positions").fetchall()
    assert [] == positions
    assert source.plan_repair(notes.spec).loss is None


def test_a_repair_that_is_killed_at_any_step_is_refused_by_name_until_it_is_done_again(
    notes: Captured,
) -> None:
    spec = notes.spec
    with session.connect(spec.dsn) as connection, closing(ConnectRest(spec.connect_url)) as rest:
        for steps in range(1, 20):
            under_way: Any = repair(connection, rest, spec, reconcile=_reconciled(connection, rest))
            said = [step for _, step in zip(range(steps), under_way, strict=False)]
            under_way.close()
            begun = captures.find(connection, spec.name)
            assert begun is not None
            if len(said) < steps or begun.repairing is None:
                break
            assert 2 == begun.repairing
            for go_on in (source.apply, source.resume):
                with pytest.raises(errors.RepairUnfinishedError):
                    go_on(spec)
            assert not source.status(spec).healthy
        assert len(said) > 4
        assert 2 == captures.epoch_of(connection, spec.name)
        asked = [read.table for read in reads.of_source(connection, spec.name, 2)]
    assert [spec.tables[0]] == asked
    assert [] == source.apply(spec)
    reader.run(spec)
    _equal(notes)


def test_a_first_capture_that_is_killed_at_any_step_is_gone_on_with(
    database: str, kafka_bootstrap: str, connect_url: str
) -> None:
    """After the slot was made and before that was noted, and after that."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
    name = f"t_{secrets.token_hex(4)}"
    spec = CaptureSpec(name, database, (NOTES,), connect_url, kafka_bootstrap)
    notes = Captured(spec, database)
    with session.connect(database) as connection:
        own_schema.ensure(connection)
        captures.intend(connection, name, spec.slot)
        slot.make(connection, spec.slot)
        connection.execute("INSERT INTO notes VALUES (1, 'before')")
        publication.ensure(connection, spec.publication, spec.captured)
        assert [f"made slot {spec.slot}"] == begin(connection, spec)
        assert [] == begin(connection, spec)
        noted = captures.find(connection, name)
        found = slot.status(connection, spec.slot)
    assert noted is not None
    assert found is not None
    assert noted.slot_made_at == noted.cleared_lsn == found.confirmed_flush_lsn
    notes.execute("INSERT INTO notes VALUES (2, 'since the slot is there')")
    try:
        source.apply(spec)
        reader.run(spec)
        seen = {((e.key or {})["id"], e.operation.value) for e in notes.events("notes")}
        assert {(1, "r"), (2, "c"), (2, "r")} == seen
        _equal(notes)
    finally:
        source.remove(spec, with_topics=True)


def _reconciled(connection: Any, rest: ConnectRest) -> Callable[[CaptureSpec], list[str]]:
    return lambda spec: reconcile.applied(reconcile.steps(connection, rest, spec))


def _equal(notes: Captured) -> None:
    with session.connect(notes.database) as connection:
        rows = dict(connection.execute("SELECT id, body FROM notes WHERE id > 0").fetchall())
    wait_until(
        lambda: {key: row["body"] for (key,), row in notes.rows("notes").items()},
        f"rows {rows}",
        accept=lambda found: found == rows,
    )
