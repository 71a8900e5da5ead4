"""What another has made at the source under a name of ours is neither dropped nor altered."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql

from cdc import continuity, source
from cdc.broker.topics import incarnation
from cdc.capture import OWN_TABLES, CaptureSpec
from cdc.postgres import captures, own_schema, preflight, publication, server, session, slot
from cdc.postgres.captures import Capture
from cdc.postgres.check import CheckState
from cdc.postgres.errors import PublicationDriftError, SchemaOwnerError, SlotError
from cdc.table import TableName
from cdc.upkeep import remnants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

pytestmark = pytest.mark.integration

ORDERS = TableName("public", "orders")
NAME = "headwater_shop"
CAPTURED = (ORDERS, *OWN_TABLES)


@pytest.fixture
def shop(database: str) -> Iterator[Connection[Any]]:
    with session.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE items (id int PRIMARY KEY)")
        yield connection


@pytest.fixture
def spec(database: str) -> CaptureSpec:
    return CaptureSpec("shop", database, (ORDERS,), "http://127.0.0.1:9", "127.0.0.1:9")


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnation, "look", lambda *_: {})


def make(connection: Connection[Any], name: str = NAME) -> None:
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))


def slots(connection: Connection[Any], name: str = NAME) -> list[Any]:
    query = "SELECT database, restart_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    return connection.execute(query, (name,)).fetchall()


def published(connection: Connection[Any]) -> publication.Publication | None:
    return publication.find(connection, NAME)


@pytest.mark.usefixtures("no_broker")
def test_a_slot_that_nobody_has_noted_stays(shop: Connection[Any], spec: CaptureSpec) -> None:
    own_schema.ensure(shop)
    make(shop)
    before = slots(shop)

    with pytest.raises(SlotError) as refused:
        continuity.begin(shop, spec)

    assert before == slots(shop)
    assert "SELECT pg_drop_replication_slot('headwater_shop');" in str(refused.value.hint)
    assert captures.find(shop, "shop") is None
    assert [False] == [t.removable for t in remnants.find(shop, "shop") if t.part == "slot"]
    told = preflight.checks(shop, source="shop", tables=[ORDERS], slot=NAME, publication=NAME)
    assert [CheckState.FAIL] == [check.state for check in told if check.name == "slot"]


@pytest.mark.usefixtures("no_broker")
def test_a_slot_that_was_made_and_not_yet_noted_is_made_anew(
    shop: Connection[Any], spec: CaptureSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_schema.ensure(shop)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(captures, "record", killed)
        with pytest.raises(KeyboardInterrupt):
            continuity.begin(shop, spec)
    before = slots(shop)
    assert captures.find(shop, "shop") is None
    assert [True] == [t.removable for t in remnants.find(shop, "shop") if t.part == "slot"]
    told = preflight.checks(shop, source="shop", tables=[ORDERS], slot=NAME, publication=NAME)
    assert [CheckState.OK] == [check.state for check in told if check.name == "slot"]

    assert ["made slot headwater_shop"] == continuity.begin(shop, spec)

    assert 1 == len(before) == len(slots(shop))
    assert before != slots(shop)
    assert captures.find(shop, "shop") is not None
    assert [] == continuity.begin(shop, spec)


@pytest.mark.usefixtures("no_broker")
def test_a_slot_that_another_makes_meanwhile_stays_at_every_later_try(
    shop: Connection[Any], spec: CaptureSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_schema.ensure(shop)
    first = slot.make

    def late(connection: Connection[Any], name: str, deadline_s: float = 60.0) -> object:
        make(connection)
        return first(connection, name, deadline_s)

    with monkeypatch.context() as patched:
        patched.setattr(slot, "make", late)
        with pytest.raises(SlotError):
            continuity.begin(shop, spec)
    before = slots(shop)

    with pytest.raises(SlotError):
        continuity.begin(shop, spec)

    assert before == slots(shop)


def test_a_slot_of_another_database_stays(shop: Connection[Any], postgres_dsn: str) -> None:
    name = f"headwater_{secrets.token_hex(4)}"
    with session.connect(postgres_dsn) as elsewhere:
        make(elsewhere, name)
        try:
            with pytest.raises(SlotError) as refused:
                slot.drop(shop, name)
            assert 1 == len(slots(shop, name))
        finally:
            slot.drop(elsewhere, name)
    assert "another database" in str(refused.value)
    assert not slot.drop(shop, name)


@pytest.mark.parametrize("who", ["this role", "another role", "another role, with the heartbeat"])
def test_a_publication_that_another_made_is_not_altered(shop: Connection[Any], who: str) -> None:
    owner = f"r_{shop.info.dbname}"
    tables = "orders"
    if "heartbeat" in who:
        own_schema.ensure(shop)
        tables = "orders, headwater.heartbeat"
    shop.execute(f"CREATE PUBLICATION {NAME} FOR TABLE {tables}".encode())
    if who != "this role":
        shop.execute(f"CREATE ROLE {owner} SUPERUSER".encode())
        shop.execute(f"ALTER PUBLICATION {NAME} OWNER TO {owner}".encode())
    before = published(shop)
    assert before is not None
    try:
        told = preflight.checks(
            shop,
            source="shop",
            tables=[ORDERS, TableName("public", "items")],
            slot=NAME,
            publication=NAME,
        )
        with pytest.raises(PublicationDriftError) as refused:
            publication.ensure(shop, NAME, [ORDERS, TableName("public", "items")])
        with pytest.raises(PublicationDriftError):
            publication.leave_out(shop, NAME, [ORDERS])
        assert not publication.drop(shop, NAME)
        assert before == published(shop)
        assert ([], False) == (before.against([])[1], before.ours)
        assert [CheckState.FAIL] == [c.state for c in told if c.name == "publication"]
        assert 'PUBLICATION "headwater_shop"' in str(refused.value.hint)
    finally:
        shop.execute(f"DROP PUBLICATION {NAME}".encode())
        shop.execute(f"DROP ROLE IF EXISTS {owner}".encode())


def test_a_publication_of_an_administrator_that_has_every_table_is_used_as_it_is(
    shop: Connection[Any],
) -> None:
    own_schema.ensure(shop)
    shop.execute(f"CREATE ROLE r_{shop.info.dbname} SUPERUSER".encode())
    shop.execute(publication.creation(NAME, list(CAPTURED)))
    owned = sql.SQL("ALTER PUBLICATION {} OWNER TO {}")
    admin = sql.Identifier(f"r_{shop.info.dbname}")
    shop.execute(owned.format(sql.Identifier(NAME), admin))
    try:
        assert [] == publication.ensure(shop, NAME, CAPTURED)
        with pytest.raises(PublicationDriftError) as refused:
            publication.ensure(shop, NAME, [*CAPTURED, TableName("public", "items")])
        hint = str(refused.value.hint)
        assert 'ALTER PUBLICATION "headwater_shop" ADD TABLE ONLY "public"."items"' in hint
        shop.execute(hint.partition(";")[0].encode())
        assert [] == publication.ensure(shop, NAME, [*CAPTURED, TableName("public", "items")])
    finally:
        shop.execute(f"DROP PUBLICATION {NAME}".encode())
        shop.execute(sql.SQL("DROP ROLE {}").format(admin))


def test_a_publication_that_was_just_made_is_known_as_ours(shop: Connection[Any]) -> None:
    own_schema.ensure(shop)
    publication.ensure(shop, NAME, CAPTURED)
    items = TableName("public", "items")

    assert [f"added public.items to publication {NAME}"] == publication.ensure(
        shop, NAME, [*CAPTURED, items]
    )
    assert [f"took public.items out of publication {NAME}"] == publication.leave_out(
        shop, NAME, [items]
    )
    assert publication.drop(shop, NAME)


def test_taking_a_capture_away_leaves_what_another_has_made(
    shop: Connection[Any], spec: CaptureSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "ConnectRest", NoConnect)
    shop.execute(f"CREATE PUBLICATION {NAME} FOR TABLE orders".encode())
    make(shop)
    before = (slots(shop), published(shop))

    gone = source.remove(spec)

    assert [] == gone
    assert before == (slots(shop), published(shop))


def test_taking_a_capture_away_takes_what_it_has_made(
    shop: Connection[Any], spec: CaptureSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "ConnectRest", NoConnect)
    own_schema.ensure(shop)
    publication.ensure(shop, NAME, CAPTURED)
    made_at = slot.make(shop, NAME)
    here = server.identify(shop)
    captures.record(shop, Capture("shop", 1, NAME, made_at, here.system_id, here.timeline))

    gone = source.remove(spec)

    assert [f"slot {NAME}", f"publication {NAME}"] == gone[:2]
    assert ([], None) == (slots(shop), published(shop))
    assert captures.find(shop, "shop") is None


def test_a_schema_of_the_name_that_another_made_is_not_altered(shop: Connection[Any]) -> None:
    shop.execute("CREATE SCHEMA headwater")
    shop.execute("CREATE TABLE headwater.captures (id int PRIMARY KEY, source text)")

    with pytest.raises(SchemaOwnerError):
        own_schema.ensure(shop)

    columns = "SELECT attname FROM pg_attribute WHERE attnum > 0 AND attrelid = %s::regclass"
    found = shop.execute(columns, ("headwater.captures",)).fetchall()
    assert [("id",), ("source",)] == found


class NoConnect:
    """A worker that has no connector."""

    def __init__(self, _url: str) -> None:
        pass

    def config(self, _name: str) -> None:
        return None

    def stop(self, _name: str) -> bool:
        return False

    def close(self) -> None:
        pass
