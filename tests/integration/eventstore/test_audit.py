"""Sealing and verifying a real log; the intruder is a superuser with triggers switched off."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from eventstore.errors import AccessRefusedError
from eventstore.postgres.audit import PostgresAudit
from eventstore.upkeep.audit import SealedHead, Tampering

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration

APPEND = (
    "SELECT eventstore.append_event(%s, %s, -1::bigint, 'order.placed', 1::smallint, %s, %s::json,"
    " %s::json, now(), %s, NULL, NULL)"
)


def append(
    dsn: str, *streams: str, tenant: str = "default", commit: bool = True, data: str = ""
) -> None:
    """One event to each; a rolled back one leaves a gap."""
    with psycopg.connect(dsn) as connection:
        for place, stream in enumerate(streams):
            values = (tenant, stream, uuid4(), data or f'{{"place": {place}}}', None, None)
            connection.execute(APPEND, values)
        if not commit:
            connection.rollback()


@pytest.fixture
def audit(store_dsn: str) -> PostgresAudit:
    """Seals blocks of 4 events."""
    return PostgresAudit(store_dsn, block=4)


@pytest.fixture
def log(store_dsn: str) -> str:
    """Ten events at the positions 1 to 5 and 7 to 11; 6 is a gap."""
    append(store_dsn, "order-1", "order-2", "order-1", "order-é", "order-2")
    append(store_dsn, "order-9", commit=False)
    append(store_dsn, "order-1", "order-2", "order-1", "order-2", "order-3")
    return store_dsn


@pytest.fixture
def tamper(store_dsn: str) -> Callable[..., None]:
    def run(*statements: str) -> None:
        with psycopg.connect(store_dsn) as connection:
            connection.execute("SET session_replication_role = replica")
            for statement in statements:
                assert connection.execute(statement).rowcount != 0

    return run


def found(audit: PostgresAudit, head: SealedHead | None = None) -> list[tuple[Tampering, int]]:
    return [(one.kind, one.position) for one in audit.verify(head).findings]


def test_an_empty_log_is_sealed_and_clean(audit: PostgresAudit) -> None:
    head = audit.seal()

    assert SealedHead() == head
    assert audit.verify(head).clean


def test_what_was_sealed_is_clean_and_counted(log: str, audit: PostgresAudit) -> None:
    head = audit.seal()
    append(log, "order-7", "order-7")

    report = audit.verify(SealedHead.parse(str(head)))

    assert (3, 11, 10) == (head.block, head.position, head.event_total)
    assert (10, 0, 2, ()) == (report.events, report.dropped, report.unsealed, report.findings)
    assert head == report.head


def test_to_seal_again_adds_only_what_is_new(log: str, audit: PostgresAudit) -> None:
    first = audit.seal()
    again = audit.seal()
    append(log, "order-7")
    later = audit.seal()

    assert first == again
    assert (4, 12, 11) == (later.block, later.position, later.event_total)
    assert audit.verify(first).clean
    assert audit.verify(later).clean


def test_in_steps_the_same_hashes_come_out_as_at_once(log: str, audit: PostgresAudit) -> None:
    for through in (3, 3, 8, 99):
        audit.seal(through)
    in_steps = hashes(log)
    with psycopg.connect(log) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("TRUNCATE eventstore.seals")

    PostgresAudit(log).seal()

    assert 10 * 32 == len(in_steps)
    assert in_steps == hashes(log)


def hashes(dsn: str) -> bytes:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT hashes FROM eventstore.seals ORDER BY block").fetchall()
    return b"".join(row[0] for row in rows)


def test_the_hashes_do_not_depend_on_the_settings_of_a_role_or_database(
    log: str, audit: PostgresAudit
) -> None:
    audit.seal()
    name = urlsplit(log).path[1:]
    with psycopg.connect(log, autocommit=True) as connection:
        for setting in (
            "timezone = 'Asia/Kolkata'",
            "client_encoding = 'LATIN1'",
            "bytea_output = 'escape'",
            "datestyle = 'German'",
        ):
            connection.execute(f'ALTER DATABASE "{name}" SET {setting}')

    report = audit.verify()

    assert (10, ()) == (report.events, report.findings)


CHANGES = {
    "tenant": "'other'",
    "stream": "stream || 'x'",
    "stream_position": "stream_position + 50",
    "type": "'order.paid'",
    "schema_version": "2",
    "event_id": "gen_random_uuid()",
    "data": "'{ }'",
    "metadata": "'{}'",
    "tags": "'{}'",
    "correlation_id": "''",
    "causation_id": "''",
    "actor": "''",
    "occurred_at": "occurred_at + interval '1 microsecond'",
    "recorded_at": "recorded_at + interval '1 microsecond'",
}


@pytest.mark.parametrize("column", CHANGES)
def test_an_edit_of_any_column_is_named(
    column: str, log: str, audit: PostgresAudit, tamper: Callable[..., None]
) -> None:
    audit.seal()

    tamper(
        f"UPDATE eventstore.events SET {column} = {CHANGES[column]}"  # noqa: S608
        " WHERE global_position IN (7, 8)"  # of two streams
    )

    assert (Tampering.CHANGED, 7) == found(audit)[0]


def test_every_column_of_the_table_is_among_those_that_were_edited(log: str) -> None:
    with psycopg.connect(log) as connection:
        columns = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'eventstore.events'::regclass"
            " AND attnum > 0"
        ).fetchall()

    assert {"global_position", *CHANGES} == {column for (column,) in columns}


COPY_OF_5 = (
    "INSERT INTO eventstore.events SELECT {}, tenant, 'order-6', 1, {}, schema_version,"
    " gen_random_uuid(), data, metadata, tags, correlation_id, causation_id, actor, occurred_at,"
    " recorded_at FROM eventstore.events WHERE global_position = 5"
)
SWAP = (
    "UPDATE eventstore.events AS e SET data = o.data FROM eventstore.events AS o"
    " WHERE (e.global_position, o.global_position) IN ((4, 9), (9, 4))"
)
ARCHIVE = "INSERT INTO eventstore.archived_events SELECT * FROM eventstore.events WHERE {}"
HASH = (
    "UPDATE eventstore.seals SET hashes = set_byte(hashes, 40, 255 - get_byte(hashes, 40))"
    " WHERE block = 2"
)

ATTACKS = {
    "position changed": (
        ["UPDATE eventstore.events SET global_position = 6 WHERE global_position = 7"],
        [(Tampering.INSERTED, 6)],
    ),
    "removed": (
        ["DELETE FROM eventstore.events WHERE global_position = 5"],
        [(Tampering.REMOVED, 5)],
    ),
    "all removed": (["DELETE FROM eventstore.events"], [(Tampering.REMOVED, 1)]),
    "last removed": (
        ["DELETE FROM eventstore.events WHERE global_position = 11"],
        [(Tampering.REMOVED, 11)],
    ),
    "made a $snapshot": (
        ["UPDATE eventstore.events SET type = '$snapshot' WHERE global_position = 2"],
        [(Tampering.REMOVED, 2), (Tampering.SNAPSHOT, 2)],
    ),
    "positions swapped": (
        [
            "UPDATE eventstore.events SET global_position = 100 WHERE global_position = 3",
            "UPDATE eventstore.events SET global_position = 3 WHERE global_position = 8",
            "UPDATE eventstore.events SET global_position = 8 WHERE global_position = 100",
        ],
        [(Tampering.CHANGED, 3)],
    ),
    "payloads swapped": (
        [SWAP],
        [(Tampering.CHANGED, 4)],
    ),
    "inserted into the gap of a rolled back append": (
        [COPY_OF_5.format(6, "type")],
        [(Tampering.INSERTED, 6)],
    ),
    "moved to the archive": (
        [
            ARCHIVE.format("global_position = 11"),
            "DELETE FROM eventstore.events WHERE global_position = 11",
        ],
        [(Tampering.MISPLACED, 11)],
    ),
    "copied to the archive": (
        [ARCHIVE.format("global_position = 3")],
        [(Tampering.INSERTED, 3), (Tampering.MISPLACED, 3)],
    ),
    "a $snapshot that compaction did not write": (
        [COPY_OF_5.format(13, "'$snapshot'")],
        [(Tampering.SNAPSHOT, 13)],
    ),
    "a hash changed": (
        [HASH],
        [(Tampering.SEAL, 7)],
    ),
    "a position of a seal changed": (
        ["UPDATE eventstore.seals SET positions = '{5,6,8,9}' WHERE block = 2"],
        [(Tampering.SEAL, 6)],
    ),
    "the range of a seal changed": (
        ["UPDATE eventstore.seals SET through_position = 12 WHERE block = 3"],
        [(Tampering.SEAL, 12)],
    ),
    "the time of a seal changed": (
        ["UPDATE eventstore.seals SET sealed_at = sealed_at + interval '1 us' WHERE block = 1"],
        [(Tampering.SEAL, 1)],
    ),
    "a seal removed": (
        ["DELETE FROM eventstore.seals WHERE block = 2"],
        [(Tampering.SEAL, 5)],
    ),
    "the first seal removed": (
        ["DELETE FROM eventstore.seals WHERE block = 1"],
        [(Tampering.SEAL, 1)],
    ),
    "a seal and its events removed": (
        [
            "DELETE FROM eventstore.seals WHERE block = 2",
            "DELETE FROM eventstore.events WHERE global_position BETWEEN 5 AND 9",
        ],
        [(Tampering.SEAL, 5)],
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_found_at_its_first_position(
    attack: str, log: str, audit: PostgresAudit, tamper: Callable[..., None]
) -> None:
    head = audit.seal()
    append(log, "order-8")
    statements, expected = ATTACKS[attack]

    tamper(*statements)

    assert expected == found(audit)
    assert set(expected) <= set(found(audit, head))


def test_a_payload_of_the_same_meaning_and_another_text_is_an_edit(
    store_dsn: str, audit: PostgresAudit, tamper: Callable[..., None]
) -> None:
    append(store_dsn, "order-1", data='{"a":1, "b":2}')
    audit.seal()

    tamper("""UPDATE eventstore.events SET data = '{"b":2, "a":1}'""")

    assert [(Tampering.CHANGED, 1)] == found(audit)


def test_a_chain_that_was_computed_anew_is_found_by_the_head_kept_outside(
    log: str, audit: PostgresAudit, tamper: Callable[..., None]
) -> None:
    head = audit.seal()
    tamper(
        "UPDATE eventstore.events SET actor = 'me' WHERE global_position = 4",
        "TRUNCATE eventstore.seals",
    )

    audit.seal()

    assert [] == found(audit)
    assert [(Tampering.REWRITTEN, 11)] == found(audit, head)


def test_a_head_kept_earlier_narrows_a_rewritten_chain_down(
    log: str, audit: PostgresAudit, tamper: Callable[..., None]
) -> None:
    early = audit.seal(4)
    late = audit.seal()
    tamper(
        "UPDATE eventstore.events SET actor = 'me' WHERE global_position = 5",
        "DELETE FROM eventstore.seals WHERE block > 1",
    )

    audit.seal()

    assert [] == found(audit, early)
    assert [(Tampering.REWRITTEN, 11)] == found(audit, late)


def test_a_tail_that_was_cut_with_its_seals_is_found_by_the_head_kept_outside(
    log: str, audit: PostgresAudit, tamper: Callable[..., None]
) -> None:
    head = audit.seal()

    tamper(
        "DELETE FROM eventstore.events WHERE global_position > 4",
        "DELETE FROM eventstore.seals WHERE block > 1",
    )

    assert [] == found(audit)
    assert [(Tampering.CUT, 4)] == found(audit, head)


def test_a_log_that_lost_everything_is_found_by_the_head_kept_outside(
    log: str, audit: PostgresAudit, tamper: Callable[..., None]
) -> None:
    head = audit.seal()

    tamper("TRUNCATE eventstore.events, eventstore.seals")

    assert [] == found(audit)
    assert [(Tampering.CUT, 0)] == found(audit, head)


def test_a_position_that_was_rolled_back_at_the_end_is_covered_by_the_seal(
    log: str, audit: PostgresAudit, tamper: Callable[..., None]
) -> None:
    append(log, "order-9", commit=False)
    head = audit.seal()

    tamper(COPY_OF_5.format(12, "type"))

    assert 12 == head.position
    assert [(Tampering.INSERTED, 12)] == found(audit)


def test_an_event_that_is_not_committed_yet_is_not_sealed_over(
    log: str, audit: PostgresAudit
) -> None:
    with psycopg.connect(log) as slow:
        slow.execute(APPEND, ("default", "order-5", uuid4(), "{}", None, None))
        append(log, "order-6")
        early = audit.seal()
    late = audit.seal()

    assert (11, 10) == (early.position, early.event_total)
    assert (13, 12) == (late.position, late.event_total)
    assert audit.verify(early).clean


def test_sealers_at_once_make_one_chain_while_writers_write(
    store_dsn: str, audit: PostgresAudit
) -> None:
    problems: list[BaseException] = []

    def until_done(work: Callable[[], Any]) -> None:
        try:
            for _ in range(15):
                work()
        except BaseException as error:  # noqa: BLE001  # shown below
            problems.append(error)

    works: list[Callable[[], Any]] = [
        lambda: append(store_dsn, "order-1", "order-2"),
        lambda: append(store_dsn, "order-2", "order-3"),
        audit.seal,
        audit.seal,
    ]
    threads = [threading.Thread(target=until_done, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    report = audit.verify(audit.seal())

    assert [] == problems
    assert (60, 0, ()) == (report.events, report.unsealed, report.findings)


def test_seals_are_facts_for_whoever_is_no_intruder(log: str, audit: PostgresAudit) -> None:
    audit.seal()

    with psycopg.connect(log) as connection, pytest.raises(psycopg.Error, match="are facts"):
        connection.execute("DELETE FROM eventstore.seals")


def test_who_sees_only_one_tenant_is_refused_instead_of_sealing_a_part(log: str) -> None:
    with psycopg.connect(log, autocommit=True) as connection:
        connection.execute("CREATE ROLE part LOGIN PASSWORD 'part'")
        try:
            connection.execute("SELECT eventstore.grant_use('part')")
            connection.execute("GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA eventstore TO part")
            address = urlsplit(log)
            place = address.netloc.rpartition("@")[2]
            dsn = address._replace(netloc=f"part:part@{place}").geturl()

            with pytest.raises(AccessRefusedError):
                PostgresAudit(dsn).seal()
        finally:
            connection.execute("DROP OWNED BY part")
            connection.execute("DROP ROLE part")


def test_blocks_of_the_usual_size_reach_over_many_events(store_dsn: str) -> None:
    with psycopg.connect(store_dsn) as connection:
        connection.execute(
            "INSERT INTO eventstore.events (global_position, tenant, stream, stream_position, type,"
            " schema_version, event_id, data, occurred_at)"
            " SELECT nextval('eventstore.global_position'), 'default', 'order-1', n,"
            " 'order.placed', 1, gen_random_uuid(), '{}', now() FROM generate_series(1, 9000) AS n"
        )
    audit = PostgresAudit(store_dsn)

    head = audit.seal()

    assert (3, 9000) == (head.block, head.event_total)
    assert (9000, ()) == (audit.verify(head).events, audit.verify(head).findings)
