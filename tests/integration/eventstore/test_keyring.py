"""Keys of persons in Postgres: one each, gone when shredded, wrapped by a master key."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from eventstore.errors import (
    AccessRefusedError,
    SchemaMissingError,
    StoreUnavailableError,
    SubjectKeyError,
    WrongKindError,
)
from eventstore.log import StateSnapshot
from eventstore.model.event import AppendRequest, NewEvent, StreamAppend
from eventstore.model.event_id import new_event_id
from eventstore.postgres import keyring as postgres_keyring
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.privacy.master_key import MasterKeys, new_master_keys
from eventstore.privacy.personal import Personal, Redacted
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventTypes
from eventstore.upkeep.upcast_check import check_log
from tests.fix_services import fresh_database
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

ANN, BOB = "ann", "bob"
TENANT = "default"
OLD = new_master_keys("old")
NEW = MasterKeys("new", {**new_master_keys("new").keys, **OLD.keys})
ROWS = """
SELECT subject, generation, master_key_id, wrapped_key IS NULL, shredded_at IS NULL
  FROM eventstore_keys.subject_keys ORDER BY tenant, subject
"""


@pytest.fixture
def open_ring(store_dsn):
    """Opens key rings as so many processes would."""
    opened = []

    def open_one(dsn: str = store_dsn, master_keys: MasterKeys = OLD, **options) -> PostgresKeyRing:
        opened.append(PostgresKeyRing(dsn, master_keys, **options))
        return opened[-1]

    yield open_one
    for ring in opened:
        ring.close()


@pytest.fixture
def ring(open_ring) -> PostgresKeyRing:
    return open_ring()


@pytest.fixture(params=["memory", "postgres"])
def any_ring(request):
    return MemoryKeyRing() if request.param == "memory" else request.getfixturevalue("ring")


@pytest.fixture
def admin(store_dsn) -> Iterator[psycopg.Connection]:
    with psycopg.connect(store_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(admin, store_dsn) -> Iterator[str]:
    """DSN of a login that may use keys and events, and owns nothing."""
    name, password = f"app_{secrets.token_hex(4)}", secrets.token_hex(8)
    words = sql.Identifier(name), sql.Literal(password)
    admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(*words))
    admin.execute("SELECT eventstore_keys.grant_use(%s)", [name])
    place = urlsplit(store_dsn)
    yield place._replace(netloc=f"{name}:{password}@{place.hostname}:{place.port}").geturl()
    admin.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(words[0]))


def let_time_pass(admin: psycopg.Connection) -> None:
    """Makes every subject one that was forgotten long ago."""
    admin.execute(
        "UPDATE eventstore_keys.subject_keys SET shredded_at = shredded_at - interval '61 s'"
    )


def wait_for_waiting(admin: psycopg.Connection) -> None:
    """Returns when a session of this database waits for another one's row."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    wait_until(
        lambda: admin.execute(waiting).fetchone(),
        "a session that waits",
        accept=lambda row: row != (0,),
    )


def test_a_subject_has_one_key_until_it_is_forgotten_and_another_when_readmitted(any_ring, admin):
    with pytest.raises(SubjectKeyError, match="no record of its destruction"):
        any_ring.key_of(TENANT, ANN)
    first = any_ring.key_of(TENANT, ANN, create=True)
    assert (32, 1) == (len(first.secret), first.generation)
    assert first == any_ring.key_of(TENANT, ANN) == any_ring.key_of(TENANT, ANN, create=True)
    assert first != any_ring.key_of(TENANT, BOB, create=True)
    assert first != any_ring.key_of("other", ANN, create=True)

    assert any_ring.shred(TENANT, ANN)
    assert not any_ring.shred(TENANT, ANN)
    assert any_ring.key_of(TENANT, ANN) is None
    assert any_ring.key_of(TENANT, ANN, create=True) is None
    assert any_ring.key_of("other", ANN) is not None

    let_time_pass(admin)
    assert any_ring.readmit(TENANT, ANN)
    assert not any_ring.readmit(TENANT, ANN)
    assert not any_ring.readmit(TENANT, "never seen")
    second = any_ring.key_of(TENANT, ANN)
    assert 2 == second.generation
    assert first.secret != second.secret


def test_a_subject_that_never_had_a_key_can_be_forgotten(any_ring):
    assert not any_ring.shred(TENANT, ANN)
    assert any_ring.key_of(TENANT, ANN, create=True) is None


def test_a_key_stays_the_same_for_another_process(open_ring):
    key = open_ring().key_of(TENANT, ANN, create=True)

    assert key == open_ring().key_of(TENANT, ANN)


def test_processes_that_ask_for_a_key_at_once_get_one(open_ring):
    rings = [open_ring() for _ in range(4)]
    ready = threading.Barrier(8)

    def ask(number: int) -> list:
        ready.wait()
        ring = rings[number % 4]
        return [ring.key_of(TENANT, f"s{n}", create=True) for n in range(20)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))

    assert 1 == len({tuple(answer) for answer in answers})


def test_who_asks_while_another_process_makes_the_key_waits_and_gets_that_one(
    store_dsn, admin, open_ring
):
    mine, theirs = open_ring(cache_s=0), open_ring(cache_s=0)
    made = theirs._new_key(TENANT, ANN, 1)
    with psycopg.connect(store_dsn) as other, ThreadPoolExecutor(1) as pool:
        other.execute(postgres_keyring._INSERT, (TENANT, ANN, *made))
        asked = pool.submit(mine.key_of, TENANT, ANN, create=True)
        wait_for_waiting(admin)
        other.commit()

        assert theirs.key_of(TENANT, ANN) == asked.result()


def test_what_is_shredded_while_its_key_is_being_made_is_forgotten(store_dsn, admin, open_ring):
    mine, theirs = open_ring(), open_ring()
    made = theirs._new_key(TENANT, ANN, 1)
    with psycopg.connect(store_dsn) as other, ThreadPoolExecutor(1) as pool:
        other.execute(postgres_keyring._INSERT, (TENANT, ANN, *made))
        shredded = pool.submit(mine.shred, TENANT, ANN)
        wait_for_waiting(admin)
        other.commit()

        assert shredded.result()
    assert theirs.key_of(TENANT, ANN, create=True) is None


def test_a_key_that_could_not_be_stored_is_not_given_out(store_dsn, admin, open_ring):
    """Events sealed by it could never be read."""
    ring = open_ring()
    admin.execute("ALTER TABLE eventstore_keys.subject_keys ADD CHECK (subject <> 'ann')")

    with pytest.raises(StoreUnavailableError):
        ring.key_of(TENANT, ANN, create=True)
    with pytest.raises(SubjectKeyError):
        ring.key_of(TENANT, ANN)


def test_shredding_is_seen_at_once_here_and_soon_elsewhere(open_ring):
    now = 100.0
    here = open_ring()
    elsewhere = open_ring(cache_s=30, clock=lambda: now)
    key = here.key_of(TENANT, ANN, create=True)
    assert key == elsewhere.key_of(TENANT, ANN)

    here.shred(TENANT, ANN)

    assert here.key_of(TENANT, ANN) is None
    now = 129.9
    assert key == elsewhere.key_of(TENANT, ANN)
    now = 130.0
    assert elsewhere.key_of(TENANT, ANN) is None


def test_a_subject_is_readmitted_when_no_process_can_have_the_old_key(ring, admin):
    """What such a process writes would be sealed by a key that is gone."""
    ring.key_of(TENANT, ANN, create=True)
    ring.shred(TENANT, ANN)

    with pytest.raises(SubjectKeyError, match="destroyed moments ago"):
        ring.readmit(TENANT, ANN)
    assert ring.key_of(TENANT, ANN) is None
    let_time_pass(admin)
    assert ring.readmit(TENANT, ANN)


def test_a_key_in_memory_is_out_of_date_where_a_later_generation_was_seen(open_ring, admin):
    here, elsewhere = open_ring(), open_ring()
    here.key_of(TENANT, ANN, create=True)
    elsewhere.key_of(TENANT, ANN)
    here.shred(TENANT, ANN)
    let_time_pass(admin)
    here.readmit(TENANT, ANN)
    new = here.key_of(TENANT, ANN)

    assert 1 == elsewhere.key_of(TENANT, ANN).generation
    assert new == elsewhere.key_of(TENANT, ANN, generation=2)


def test_a_key_that_is_shredded_while_it_is_looked_up_is_not_kept_in_memory(open_ring):
    class Slow(MasterKeys):
        def unwrap(self, *given):
            ring.shred(TENANT, ANN)  # by another thread, after this one has read the row
            return MasterKeys.unwrap(self, *given)

    open_ring().key_of(TENANT, ANN, create=True)
    ring = open_ring(master_keys=Slow(OLD.current, OLD.keys))

    assert ring.key_of(TENANT, ANN) is not None
    assert ring.key_of(TENANT, ANN) is None


def test_memory_is_bounded(open_ring, monkeypatch):
    monkeypatch.setattr(postgres_keyring, "CACHED_MAX", 5)
    ring = open_ring()
    for number in range(12):
        ring.key_of(TENANT, f"s{number}", create=True)

    assert len(ring._cache) <= 5
    for cache_s in (-1, 60.1, float("nan"), float("inf")):
        with pytest.raises(SubjectKeyError, match="at most 60 seconds"):
            open_ring(cache_s=cache_s)


def test_keys_are_wrapped_at_rest_and_bound_to_their_subject(ring, admin, open_ring):
    key = ring.key_of(TENANT, ANN, create=True)
    ring.key_of(TENANT, BOB, create=True)
    stored = admin.execute("SELECT wrapped_key FROM eventstore_keys.subject_keys").fetchall()
    assert all(key.secret not in row[0] for row in stored)

    admin.execute(
        "UPDATE eventstore_keys.subject_keys AS mine SET wrapped_key = theirs.wrapped_key"
        " FROM eventstore_keys.subject_keys AS theirs"
        " WHERE mine.subject = 'ann' AND theirs.subject = 'bob'"
    )

    with pytest.raises(SubjectKeyError, match="cannot be unwrapped"):
        open_ring().key_of(TENANT, ANN)
    with pytest.raises(SubjectKeyError, match="unknown master key") as refused:
        open_ring(master_keys=new_master_keys("x")).key_of(TENANT, BOB)
    assert "master key old" == refused.value.detail


def test_shredding_deletes_the_saved_states_of_that_subject(ring, pg_log):
    for tenant, stream, subjects in (
        (TENANT, "order-1", (ANN, BOB)),
        (TENANT, "order-2", (BOB,)),
        (TENANT, "order-3", ()),
        ("other", "order-1", (ANN,)),
    ):
        saved = StateSnapshot(stream, "f", 1, b"{}", bytes(32), subjects)
        pg_log.save_snapshot(tenant, saved)
    ring.shred(TENANT, ANN)

    assert [None, "order-2", "order-3", "order-1"] == [
        found and found.stream
        for found in (
            pg_log.snapshot(TENANT, "order-1", "f"),
            pg_log.snapshot(TENANT, "order-2", "f"),
            pg_log.snapshot(TENANT, "order-3", "f"),
            pg_log.snapshot("other", "order-1", "f"),
        )
    ]


def test_a_rotation_wraps_every_key_anew_and_the_old_master_key_can_go(ring, admin, open_ring):
    keys = {name: ring.key_of(TENANT, name, create=True) for name in (ANN, BOB)}
    keys["eve"] = ring.key_of("other", "eve", create=True)
    ring.key_of(TENANT, "gone", create=True)
    ring.shred(TENANT, "gone")

    assert 3 == ring.rotate(NEW)
    assert 0 == ring.rotate(NEW)
    assert [
        ("ann", 1, "new", False, True),
        ("bob", 1, "new", False, True),
        ("gone", 1, None, True, False),
        ("eve", 1, "new", False, True),
    ] == admin.execute(ROWS).fetchall()
    later = open_ring(master_keys=MasterKeys("new", {"new": NEW.keys["new"]}))
    assert keys == {
        ANN: later.key_of(TENANT, ANN),
        BOB: later.key_of(TENANT, BOB),
        "eve": later.key_of("other", "eve"),
    }
    ring.key_of(TENANT, "late", create=True)
    assert later.key_of(TENANT, "late") is not None


class Interrupted(MasterKeys):
    """Stops the third wrapping, as a process that is killed would."""

    def wrap(self, *given):
        if next(WRAPPED) == 3:
            raise KeyboardInterrupt
        return MasterKeys.wrap(self, *given)


WRAPPED = count(1)


def test_a_rotation_that_was_interrupted_goes_on(ring, admin, monkeypatch):
    monkeypatch.setattr(postgres_keyring, "BATCH", 2)
    keys = [ring.key_of(TENANT, f"s{n}", create=True) for n in range(5)]
    with pytest.raises(KeyboardInterrupt):
        ring.rotate(Interrupted("new", NEW.keys))
    halfway = [row[2] for row in admin.execute(ROWS).fetchall()]

    assert ["new", "new", "old", "old", "old"] == halfway
    assert 3 == ring.rotate(NEW)
    ring._cache.clear()
    assert keys == [ring.key_of(TENANT, f"s{n}") for n in range(5)]


def test_a_ring_is_used_while_it_is_rotated(open_ring, monkeypatch):
    monkeypatch.setattr(postgres_keyring, "BATCH", 3)
    user, rotating = open_ring(master_keys=NEW, cache_s=0), open_ring()
    before = [rotating.key_of(TENANT, f"s{n}", create=True) for n in range(40)]
    with ThreadPoolExecutor(3) as pool:
        rotations = [pool.submit(rotating.rotate, NEW), pool.submit(open_ring().rotate, NEW)]
        shredded = [pool.submit(user.shred, TENANT, f"s{n}") for n in range(0, 40, 4)]
        during = [user.key_of(TENANT, f"s{n}") for n in range(1, 40, 4)]

    assert before[1::4] == during
    assert all(each.result() for each in shredded)
    assert 30 <= sum(each.result() for each in rotations) <= 40
    assert [None] * 10 == [user.key_of(TENANT, f"s{n}") for n in range(0, 40, 4)]
    assert before[2::4] == [user.key_of(TENANT, f"s{n}") for n in range(2, 40, 4)]


def test_a_rotation_without_a_master_key_that_is_in_use_does_nothing(ring, admin):
    ring.key_of(TENANT, ANN, create=True)
    with pytest.raises(SubjectKeyError, match="unknown master key") as refused:
        ring.rotate(new_master_keys("new"))

    assert "master key old" == refused.value.detail
    assert ["old"] == [row[2] for row in admin.execute(ROWS).fetchall()]
    assert ring.key_of(TENANT, BOB, create=True) is not None


def test_a_damaged_key_does_not_hold_up_the_rotation_of_the_others(ring, admin, monkeypatch):
    monkeypatch.setattr(postgres_keyring, "BATCH", 2)
    for number in range(5):
        ring.key_of(TENANT, f"s{number}", create=True)
    admin.execute(
        "UPDATE eventstore_keys.subject_keys SET wrapped_key = 'x' WHERE subject IN ('s0', 's1')"
    )
    with pytest.raises(SubjectKeyError) as refused:
        ring.rotate(NEW)

    assert "2 failed, 3 were wrapped again" == refused.value.detail
    assert ["old", "old", "new", "new", "new"] == [r[2] for r in admin.execute(ROWS).fetchall()]


def test_a_role_sees_the_keys_of_the_tenant_it_acts_for_and_keeps_what_is_forgotten(
    app, admin, open_ring
):
    name = urlsplit(app).username
    ring = open_ring(app)
    key = ring.key_of(TENANT, ANN, create=True)
    ring.shred(TENANT, BOB)  # it has no privilege on saved states, and needs none
    with psycopg.connect(app, autocommit=True) as session:
        assert (0,) == session.execute(
            "SELECT count(*) FROM eventstore_keys.subject_keys"
        ).fetchone()
        session.execute("SELECT set_config('eventstore.tenant', 'default', false)")
        assert (2,) == session.execute(
            "SELECT count(*) FROM eventstore_keys.subject_keys"
        ).fetchone()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("DELETE FROM eventstore_keys.subject_keys")

    with pytest.raises(AccessRefusedError, match="every tenant"):
        ring.rotate(NEW)
    admin.execute("INSERT INTO eventstore.tenant_roles VALUES (%s, 'other')", [name])
    bound = open_ring(app)
    for refused in (bound.shred, lambda *who: bound.key_of(*who, create=True)):
        with pytest.raises(AccessRefusedError):
            refused(TENANT, "eve")
    with pytest.raises(SubjectKeyError):
        bound.key_of(TENANT, ANN)
    assert key == open_ring().key_of(TENANT, ANN)


def test_an_address_without_keys_is_told_without_showing_it(database, open_ring):
    place = urlsplit(database)
    wrong = place._replace(netloc=f"nobody:s3cret@{place.hostname}:{place.port}").geturl()
    with pytest.raises(StoreUnavailableError) as refused:
        open_ring(wrong)
    assert "s3cret" not in f"{refused.value} {refused.value.detail}"
    ring = open_ring(database)
    assert "postgres" not in repr(ring)

    with pytest.raises(SchemaMissingError):
        ring.key_of(TENANT, ANN)


types = EventTypes()


@types.event("customer.registered", subject="customer_id")
class Registered:
    customer_id: str
    email: Personal[str]


def test_a_person_is_forgotten_in_a_log_whose_keys_are_in_another_database(
    postgres_dsn, store_template, pg_log, open_ring
):
    with fresh_database(postgres_dsn, store_template) as keys_dsn:
        ring = open_ring(keys_dsn)
        codec = Codec(types, ring)
        for stream, who in (("customer-1", ANN), ("customer-2", BOB)):
            new = codec.encode(
                Registered(who, f"{who}@example.org"),
                tenant=TENANT,
                stream=stream,
                stream_position=1,
            )
            pg_log.append(AppendRequest((StreamAppend(stream, (new,), 0),)))
        stray = NewEvent("customer.lost", b"{}", new_event_id(), datetime.now(UTC))
        pg_log.append(AppendRequest((StreamAppend("customer-3", (stray,)),)))
        ring.shred(TENANT, ANN)
        read = list(pg_log.read_log(TENANT))
        emails = [codec.decode(event).email for event in read[:2]]
        report = check_log(pg_log, codec)
        ring.close()

    assert [Redacted(ANN), "bob@example.org"] == emails
    assert b"@example.org" not in b"".join(event.data for event in read)
    assert [("customer.lost", 1, 1), ("customer.registered", 2, 0)] == [
        (each.type, each.events, each.failures) for each in report.versions
    ]
    assert read[-1].global_position == report.through


@pytest.mark.parametrize("subject", [7, None, UUID(int=7)])
def test_a_subject_that_is_no_text_is_refused(open_ring, subject):
    ring = open_ring()
    for call in (ring.shred, ring.readmit, ring.key_of):
        with pytest.raises(WrongKindError):
            call("default", subject)
