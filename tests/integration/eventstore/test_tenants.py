"""Tenants: part of every stream's identity, held by the database for roles that do not own it."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from eventstore.errors import AccessRefusedError
from eventstore.log import LogPart, StateSnapshot
from eventstore.model.event import AppendRequest, Idempotency, NewEvent, StreamAppend
from eventstore.model.query import tagged
from eventstore.postgres.log import PostgresEventLog

pytestmark = pytest.mark.integration

ANN, BOB = "ann", "bob"


def request(tenant: str, stream: str = "order-1", **more) -> AppendRequest:
    event = NewEvent("note.made", b"{}", uuid4(), datetime.now(UTC), tags=("t:1",))
    return AppendRequest((StreamAppend(stream, (event,)),), tenant=tenant, **more)


@pytest.fixture
def role(store_dsn):
    """Name and DSN of a login that may use the store and owns nothing."""
    name, password = f"app_{secrets.token_hex(4)}", secrets.token_hex(8)
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                sql.Identifier(name), sql.Literal(password)
            )
        )
        admin.execute("SELECT eventstore.grant_use(%s)", [name])
    place = urlsplit(store_dsn)
    yield name, place._replace(netloc=f"{name}:{password}@{place.hostname}:{place.port}").geturl()
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


@pytest.fixture
def app_log(role):
    log = PostgresEventLog(role[1])
    yield log
    log.close()


def test_the_same_stream_name_is_two_streams_in_two_tenants(pg_log):
    pg_log.append(request(ANN))
    pg_log.append(request(ANN))

    assert 1 == pg_log.append(request(BOB)).version
    assert [1, 2] == [e.stream_position for e in pg_log.read_stream(ANN, "order-1")]
    assert [BOB] == [e.tenant for e in pg_log.read_log(BOB)]


def test_an_idempotency_key_belongs_to_its_tenant(pg_log):
    key = Idempotency("k", b"d" * 32)
    pg_log.append(request(ANN, idempotency=key))

    assert not pg_log.append(request(BOB, idempotency=key)).repeated


def test_an_ordinary_role_appends_and_reads_for_each_tenant_it_acts_for(app_log):
    app_log.append(request(ANN))
    app_log.append(request(BOB, idempotency=Idempotency("k", b"d" * 32)))
    app_log.save_snapshot(ANN, StateSnapshot("order-1", "f/1", 1, b"{}", b"", ()))

    assert [ANN] == [e.tenant for e in app_log.read_log(ANN)]
    assert [BOB] == [e.tenant for e in app_log.read_log(BOB, LogPart(tagged("t:1")))]
    assert 1 == len(app_log.read_boundary(BOB, tagged("t:1")).events)
    assert app_log.snapshot(ANN, "order-1", "f/1") is not None
    assert app_log.snapshot(BOB, "order-1", "f/1") is None


def test_an_ordinary_role_sees_nothing_while_it_says_no_tenant(pg_log, role):
    pg_log.append(request(ANN))
    with psycopg.connect(role[1]) as session:
        counts = [
            session.execute(f"SELECT count(*) FROM eventstore.{table}").fetchone()  # noqa: S608
            for table in ("events", "archived_events", "log", "event_tags", "idempotency_keys")
        ]

    assert [(0,)] * 5 == counts


@pytest.mark.parametrize(
    "forbidden",
    [
        "UPDATE eventstore.events SET type = 'x'",
        "DELETE FROM eventstore.events",
        "TRUNCATE eventstore.events",
        "INSERT INTO eventstore.archived_events SELECT * FROM eventstore.events",
        "INSERT INTO eventstore.tenant_roles VALUES (current_user, 'ann')",
        "ALTER TABLE eventstore.events DISABLE ROW LEVEL SECURITY",
        "SELECT setval('eventstore.global_position', 1)",
    ],
)
def test_an_ordinary_role_may_not(role, forbidden):
    with psycopg.connect(role[1]) as session:
        session.execute("SELECT set_config('eventstore.tenant', 'ann', true)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(forbidden)


def test_even_the_owner_does_not_change_an_event_by_mistake(pg_log, store_dsn):
    pg_log.append(request(ANN))
    with psycopg.connect(store_dsn, autocommit=True) as owner:
        for change in ("UPDATE eventstore.events SET type = 'x'", "TRUNCATE eventstore.events"):
            with pytest.raises(psycopg.Error, match="events are facts"):
                owner.execute(change)


@pytest.fixture
def bound_to_ann(role, store_dsn, app_log):
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        admin.execute("INSERT INTO eventstore.tenant_roles VALUES (%s, %s)", [role[0], ANN])
    return app_log


def test_a_role_that_belongs_to_a_tenant_cannot_append_for_another(bound_to_ann, pg_log):
    bound_to_ann.append(request(ANN))
    with pytest.raises(AccessRefusedError):
        bound_to_ann.append(request(BOB))
    with pytest.raises(AccessRefusedError):
        bound_to_ann.append(request(BOB, idempotency=Idempotency("k", b"d" * 32)))

    assert [ANN] == [e.tenant for e in pg_log.read_log(None)]


def test_a_role_that_belongs_to_a_tenant_cannot_read_another(bound_to_ann, pg_log):
    pg_log.append(request(ANN))
    pg_log.append(request(BOB))
    pg_log.save_snapshot(BOB, StateSnapshot("order-1", "f/1", 1, b"{}", b"", ()))

    assert [] == list(bound_to_ann.read_log(BOB))
    assert [] == list(bound_to_ann.read_stream(BOB, "order-1"))
    assert 0 == bound_to_ann.stream_version(BOB, "order-1")
    assert [ANN] == [e.tenant for e in bound_to_ann.read_log(None)]
    assert [] == bound_to_ann.read_boundary(BOB, tagged("t:1")).events
    assert bound_to_ann.snapshot(BOB, "order-1", "f/1") is None


def test_a_missing_grant_is_named_with_its_repair(store_dsn, role):
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        admin.execute(
            sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA eventstore FROM {}").format(
                sql.Identifier(role[0])
            )
        )
    log = PostgresEventLog(role[1])
    with pytest.raises(AccessRefusedError) as refused:
        log.append(request(ANN))
    log.close()

    assert "headwater db grant" in str(refused.value.hint)
