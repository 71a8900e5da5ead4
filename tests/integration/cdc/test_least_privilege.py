from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from cdc import source
from cdc.broker.client.admin import consumer
from cdc.broker.topics.offsets import partitions
from cdc.column_rule import ColumnRules
from cdc.connect.rest import ConnectRest
from cdc.postgres import session
from cdc.postgres.check import CheckState
from cdc.postgres.errors import PreflightError
from cdc.snapshot import ranges, reader
from cdc.snapshot.errors import SnapshotError
from cdc.table import TableName
from cdc.upkeep.hiding import columns_read
from cdc.upkeep.role import statements
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_capture import Captured

pytestmark = pytest.mark.integration

TABLE = "CREATE TABLE orders (id int PRIMARY KEY, note text)"


@pytest.fixture
def role(database: str) -> Iterator[str]:
    """Name of a role that is not there yet, and is not there any more afterwards."""
    name = f"hw_{secrets.token_hex(4)}"
    yield name
    with session.connect(database) as connection:
        connection.execute(f"DROP OWNED BY {name}".encode())
        connection.execute(f"DROP ROLE {name}".encode())


def execute(dsn: str, *commands: str) -> None:
    with session.connect(dsn) as connection:
        for command in commands:
            connection.execute(command.encode())


def as_role(dsn: str, name: str, password: str) -> str:
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"{name}:{password}@{parts.hostname}:{parts.port}").geturl()


def spec_of(dsn: str, **settings: object) -> source.CaptureSpec:
    return source.CaptureSpec(
        name=f"t_{secrets.token_hex(4)}",
        dsn=dsn,
        tables=(TableName("public", "orders"),),
        **settings,  # type: ignore[arg-type]
    )


def test_the_printed_sql_makes_a_role_that_captures_and_can_do_nothing_else(
    database: str, role: str, connect_url: str, kafka_bootstrap: str
) -> None:
    """It is the only role there is: it reads, streams, and keeps the state of capture."""
    execute(database, TABLE, "INSERT INTO orders SELECT n, 'read' FROM generate_series(1, 50) n")
    limited = as_role(database, role, "limited")
    spec = spec_of(limited, connect_url=connect_url, kafka_bootstrap=kafka_bootstrap)
    printed = statements(spec, urlsplit(database).path[1:], role, alone=True)
    execute(database, *(one.sql for one in printed), f"ALTER ROLE {role} PASSWORD 'limited'")

    try:
        source.apply(spec)
        reader.run(spec)
        execute(database, "INSERT INTO orders VALUES (51, 'streamed')")
        ids = read_ids(spec, 51)
        healthy = source.status(spec).healthy
    finally:
        source.remove(spec, with_topics=True)

    assert set(range(1, 52)) == ids
    assert healthy
    with session.connect(limited) as connection:
        row = connection.execute(
            "SELECT rolsuper, rolbypassrls, rolcreaterole, rolcreatedb,"
            " has_table_privilege('orders', 'INSERT, UPDATE, DELETE, TRUNCATE'),"
            " has_schema_privilege('public', 'CREATE'),"
            " EXISTS (SELECT FROM pg_class WHERE relowner = current_user::regrole)"
            " FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
    assert row == (False,) * 7


def test_a_role_need_not_see_what_rules_keep_in_the_source(
    database: str,
    role: str,
    connect_url: str,
    kafka_bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranges, "RANGE_ROWS", 5_000)  # so that the table is a large one
    execute(
        database,
        TABLE,
        "ALTER TABLE orders ADD COLUMN ssn text",
        "INSERT INTO orders SELECT n, repeat('x', 1000), 'secret' FROM generate_series(1, 20000) n",
        "ANALYZE orders",
    )
    spec = spec_of(
        database,
        capture_dsn=as_role(database, role, "x"),
        connect_url=connect_url,
        kafka_bootstrap=kafka_bootstrap,
        columns={TableName("public", "orders"): ColumnRules(only=["id", "note"])},
    )
    with session.connect(database) as connection:
        columns = columns_read(connection, spec)
    printed = statements(spec, urlsplit(database).path[1:], role, columns=columns)
    execute(database, *(one.sql for one in printed), f"ALTER ROLE {role} PASSWORD 'x'")
    assert [] == lacking(spec)

    try:
        source.apply(spec)
        reader.run(spec)
        execute(database, "INSERT INTO orders VALUES (20001, 'streamed', 'secret')")
        ids = read_ids(spec, 20_001)
    finally:
        source.remove(spec, with_topics=True)

    assert set(range(1, 20_002)) == ids
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(spec.reader_dsn, "SELECT ssn FROM orders")
    execute(database, f"REVOKE ALL (note) ON orders FROM {role}")
    columns_named = '"id", "note", "ctid", "tableoid"'
    assert [f'GRANT SELECT ({columns_named}) ON "public"."orders" TO "{role}";'] == lacking(spec)


def test_each_missing_grant_is_refused_by_name_with_what_grants_it(
    database: str, role: str
) -> None:
    execute(database, TABLE)
    nowhere = {"connect_url": "", "kafka_bootstrap": ""}
    spec = spec_of(database, capture_dsn=as_role(database, role, "x"), **nowhere)
    printed = [one.sql for one in statements(spec, urlsplit(database).path[1:], role)]
    execute(database, *printed, f"ALTER ROLE {role} PASSWORD 'x'")
    assert [] == lacking(spec)

    for loss, repair in (
        (f"ALTER ROLE {role} NOREPLICATION", f'ALTER ROLE "{role}" REPLICATION;'),
        (
            f"REVOKE ALL ON orders FROM {role}",
            f'GRANT SELECT ON "public"."orders" TO "{role}";',
        ),
        (
            f"REVOKE INSERT ON headwater.heartbeat FROM {role}",
            f'GRANT SELECT, INSERT, UPDATE ON headwater.heartbeat TO "{role}";',
        ),
        (
            f"REVOKE USAGE ON SCHEMA headwater FROM {role}",
            f'GRANT USAGE ON SCHEMA headwater TO "{role}";',
        ),
    ):
        execute(database, loss)
        assert [repair] == lacking(spec), loss
        with pytest.raises(PreflightError, match="cannot be captured"):
            source.apply(spec)
        execute(database, repair)
    assert [] == lacking(spec)


def test_a_policy_of_row_security_halts_capture_instead_of_thinning_it(
    database: str, role: str, connect_url: str, kafka_bootstrap: str
) -> None:
    execute(database, TABLE, "INSERT INTO orders VALUES (1, 'seen'), (2, 'hidden')")
    limited = as_role(database, role, "x")
    spec = spec_of(
        database, capture_dsn=limited, connect_url=connect_url, kafka_bootstrap=kafka_bootstrap
    )
    printed = [one.sql for one in statements(spec, urlsplit(database).path[1:], role)]
    execute(database, *printed, f"ALTER ROLE {role} PASSWORD 'x'")

    try:
        source.apply(spec)
        # after preflight: whoever owns the table may add a policy at any time
        execute(
            database,
            "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY few ON orders USING (note = 'seen')",
        )
        with pytest.raises(SnapshotError) as halted:
            reader.run(spec)
        refused = lacking(spec)
    finally:
        source.remove(spec, with_topics=True)

    assert "row-level security" in (halted.value.detail or "")
    assert [f'ALTER ROLE "{role}" BYPASSRLS;  or exempt it from the table\'s policies'] == refused


def test_the_password_is_in_no_topic_no_answer_and_no_log(
    capture: Callable[..., Captured],
    database: str,
    role: str,
    connect_secrets: Path,
    connect_url: str,
) -> None:
    canary = f"canary{secrets.token_hex(8)}"
    execute(database, TABLE, f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{canary}'")
    captured = capture(
        "public.orders",
        capture_dsn=as_role(database, role, canary),
        secrets_folder=connect_secrets,
    )
    spec = captured.spec
    execute(database, "INSERT INTO orders VALUES (1, 'streamed')")
    assert {1} == read_ids(spec, 1)

    (secret,) = (connect_secrets / spec.name).iterdir()
    config = ConnectRest(connect_url).config(spec.connector)
    shown = f"{source.plan(spec)}{source.status(spec)}{spec}{config}"
    topics = b"".join(
        (record.value or b"")
        for topic in ("headwater-connect-configs", "headwater-connect-status")
        for record in everything(spec.kafka_bootstrap, topic)
    )
    logs = b"".join(path.read_bytes() for path in connect_secrets.parents[3].glob("log/*.log"))

    assert (canary, 0o600) == (secret.read_text(), secret.stat().st_mode & 0o777)
    assert spec.connector.encode() in topics
    assert len(logs) > 0
    assert canary not in shown
    assert canary.encode() not in topics
    assert canary.encode() not in logs


def lacking(spec: source.CaptureSpec) -> list[str | None]:
    with session.connect(spec.dsn) as connection:
        found = source.checks(connection, spec)
    return [check.hint for check in found if check.state is CheckState.FAIL]


def read_ids(spec: source.CaptureSpec, last: int) -> set[int]:
    """Reads the topic of the table until a row of that number has come."""
    found: set[int] = set()
    with consumer(spec.kafka_bootstrap) as client:
        places = partitions(client, [f"{spec.name}.public.orders"])
        client.assign(places)
        client.seek_to_beginning(*places)

        def came() -> set[int]:
            for records in client.poll(timeout_ms=100).values():
                found.update(int(re.findall(rb"\d+", record.key)[0]) for record in records)
            return found

        wait_until(came, f"row {last}", accept=lambda ids: last in ids, pause_s=0)
    return found


def everything(bootstrap: str, topic: str) -> list[Any]:
    found: list[Any] = []
    with consumer(bootstrap) as client:
        places = partitions(client, [topic])
        client.assign(places)
        client.seek_to_beginning(*places)
        ends = client.end_offsets(places)
        while any(client.position(place) < ends[place] for place in places):
            for records in client.poll(timeout_ms=200).values():
                found += records
    return found
