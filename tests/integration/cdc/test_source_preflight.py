from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest

from cdc.postgres import catalog, own_schema, preflight, provider, session
from cdc.postgres.check import Check, CheckState
from cdc.postgres.errors import (
    CredentialsError,
    DatabaseMissingError,
    HostUnknownError,
    PostgresError,
    PostgresRefusedError,
)
from cdc.table import ColumnKind, TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.integration


def found(
    dsn: str, tables: Sequence[str], slot: str = "headwater_t", insert_only: Sequence[str] = ()
) -> list[Check]:
    names = [TableName.parse(table) for table in tables]
    with session.connect(dsn) as connection:
        return list(
            preflight.checks(
                connection,
                source="t",
                tables=names,
                slot=slot,
                publication="p",
                insert_only=[TableName.parse(table) for table in insert_only],
            )
        )


def failing(checks: Sequence[Check]) -> list[str]:
    return [check.name for check in checks if check.state is CheckState.FAIL]


def execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_each_reason_not_to_connect_has_its_own_code(database: str) -> None:
    parts = urlsplit(database)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    user, at = parts.username, f"127.0.0.1:{parts.port}"
    wrong: dict[str, type[PostgresError]] = {
        "postgresql://u@no-such-host.invalid/d": HostUnknownError,
        f"postgresql://u@127.0.0.1:{free}/d": PostgresRefusedError,
        parts._replace(path="/no_such_database").geturl(): DatabaseMissingError,
        f"postgresql://{user}:wrong-word@{at}{parts.path}": CredentialsError,
        f"postgresql://nobody_here:wrong-word@{at}{parts.path}": CredentialsError,
    }
    seen = {}
    for dsn, expected in wrong.items():
        with pytest.raises(expected) as refused:
            session.connect(dsn)
        seen[dsn] = refused.value

    assert 4 == len({error.code for error in seen.values()})
    assert not any("wrong-word" in f"{e.message}{e.detail}{e.hint}" for e in seen.values())


def test_a_source_that_is_ready_passes(database: str) -> None:
    execute(database, "CREATE TABLE orders (id bigint PRIMARY KEY)")

    checks = found(database, ["orders"])

    assert {CheckState.OK} == {check.state for check in checks}


def test_an_event_store_that_is_not_there_is_made_by_one_command(database: str) -> None:
    checks = found(database, ["eventstore.events", "eventstore.outbox"])

    assert ["table eventstore.events", "table eventstore.outbox"] == failing(checks)
    assert {"headwater db upgrade"} == {check.hint for check in checks if check.hint}


@pytest.mark.parametrize(
    ("ddl", "word"),
    [
        ("CREATE VIEW t AS SELECT 1 AS id", "a view"),
        ("CREATE UNLOGGED TABLE t (id bigint PRIMARY KEY)", "unlogged"),
        ("CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", "materialized"),
        ("CREATE TABLE t (id bigint); ALTER TABLE t REPLICA IDENTITY NOTHING", "NOTHING"),
        ("CREATE TABLE tt (id bigint)", "does not exist"),
    ],
    ids=["view", "unlogged", "materialized view", "identity nothing", "missing"],
)
def test_what_leaves_no_trace_in_the_log_is_refused(database: str, ddl: str, word: str) -> None:
    execute(database, *ddl.split(";"))

    checks = found(database, ["t"])

    (check,) = [check for check in checks if check.state is CheckState.FAIL]
    assert "table public.t" == check.name
    assert word in check.message
    assert check.hint


def test_a_table_without_a_key_is_explained(database: str) -> None:
    execute(database, "CREATE TABLE notes (said text)")

    (check,) = [check for check in found(database, ["notes"]) if check.state is CheckState.FAIL]

    assert "UPDATE and DELETE" in check.message
    assert "insert_only" in (check.detail or "")
    assert "ADD PRIMARY KEY" in (check.hint or "")


def test_a_table_declared_insert_only_is_not_asked_for_a_key(database: str) -> None:
    execute(
        database,
        "CREATE TABLE notes (said text)",
        "CREATE TABLE readings (at date) PARTITION BY RANGE (at)",
        "CREATE TABLE readings_1 PARTITION OF readings DEFAULT",
    )

    tables = ["notes", "readings"]
    checks = found(database, tables, insert_only=tables)

    assert [] == [check for check in checks if check.state is not CheckState.OK]
    assert {"table public.notes", "table public.readings"} == {
        check.name for check in checks if "refuses UPDATE and DELETE" in check.message
    }


def test_a_table_whose_old_rows_are_logged_whole_needs_no_key(database: str) -> None:
    execute(database, "CREATE TABLE notes (said text)", "ALTER TABLE notes REPLICA IDENTITY FULL")

    (check,) = [check for check in found(database, ["notes"]) if check.state is CheckState.WARN]

    assert "row by row" in (check.detail or "")


def test_a_role_without_rights_is_told_the_grants(database: str) -> None:
    execute(
        database,
        "CREATE TABLE orders (id bigint PRIMARY KEY)",
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk LOGIN PASSWORD 'x'",
    )
    parts = urlsplit(database)
    clerk = parts._replace(netloc=f"clerk:x@127.0.0.1:{parts.port}").geturl()

    hints = {check.hint for check in found(clerk, ["orders"]) if check.state is CheckState.FAIL}
    execute(database, "DROP ROLE clerk")

    assert {
        'ALTER ROLE "clerk" REPLICATION;',
        'GRANT SELECT ON "public"."orders" TO "clerk";',
    } == hints


def test_a_slot_of_another_database_is_not_taken_over(database: str, postgres_dsn: str) -> None:
    make = "SELECT pg_create_logical_replication_slot('headwater_t', 'pgoutput')"
    execute(postgres_dsn, make)

    try:
        checks = found(database, [])
    finally:
        execute(postgres_dsn, "SELECT pg_drop_replication_slot('headwater_t')")

    assert ["slot"] == failing(checks)


@pytest.mark.parametrize(
    ("ddl", "state"),
    [
        ("CREATE PUBLICATION p FOR TABLE orders WITH (publish_via_partition_root)", "fail"),
        ("CREATE PUBLICATION p FOR TABLE orders WITH (publish = 'insert')", "fail"),
        ("CREATE PUBLICATION p FOR TABLE orders (id) WITH (publish_via_partition_root)", "fail"),
        ("CREATE PUBLICATION p FOR TABLE other WITH (publish_via_partition_root)", "fail"),
        ("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)", "ok"),
    ],
    ids=["another's", "inserts only", "one column", "another table", "all tables"],
)
def test_a_publication_that_would_lose_changes_is_named(
    database: str, ddl: str, state: str
) -> None:
    execute(
        database,
        "CREATE TABLE orders (id bigint PRIMARY KEY, note text)",
        "CREATE TABLE other (id bigint PRIMARY KEY)",
        ddl,
    )

    checks = {check.name: check for check in found(database, ["orders"])}

    assert state == checks["publication"].state


def test_the_age_of_the_heartbeat_is_told(database: str) -> None:
    with session.connect(database) as connection:
        own_schema.ensure(connection)

    checks = {check.name: check for check in found(database, [])}

    assert checks["heartbeat"].message.startswith("last written")


def test_the_catalog_tells_kinds_keys_and_precision(database: str) -> None:
    execute(
        database,
        "CREATE DOMAIN money_amount AS numeric(12,2)",
        "CREATE TYPE mood AS ENUM ('happy', 'sad')",
        """CREATE TABLE "Every Thing" (
            b int, a bigint, amount money_amount, free numeric, negative numeric(3,-2), mood mood,
            at timestamptz NOT NULL, tags text[], twice bigint GENERATED ALWAYS AS (a * 2) STORED,
            PRIMARY KEY (b, a))""",
    )
    name = TableName("public", "Every Thing")

    with session.connect(database) as connection:
        schema = catalog.describe(connection, [name, TableName("public", "missing")])[name]
        listed = catalog.list_tables(connection)

    columns = schema.by_name
    assert ("b", "a") == schema.key
    assert [name] == listed
    assert (12, 2) == (columns["amount"].precision, columns["amount"].scale)
    assert (None, None) == (columns["free"].precision, columns["free"].scale)
    assert (3, -2) == (columns["negative"].precision, columns["negative"].scale)
    assert ColumnKind.TEXT is columns["mood"].kind
    assert (ColumnKind.TIMESTAMPTZ, False) == (columns["at"].kind, columns["at"].nullable)
    assert ColumnKind.INTEGER is columns["twice"].kind  # Postgres 18 publishes stored ones


@pytest.mark.parametrize(
    ("mark", "logical", "replicates"),
    [
        ("rds_superuser", "rds.logical_replication", "GRANT rds_replication TO"),
        ("cloudsqlsuperuser", "cloudsql.logical_decoding", "REPLICATION;"),
        ("azure_pg_admin", "wal_level = logical", "REPLICATION;"),
        ("supabase_admin", "wal_level = logical", "REPLICATION;"),
    ],
)
def test_a_managed_server_is_repaired_as_its_provider_lets_one(
    database: str, mark: str, logical: str, replicates: str
) -> None:
    with psycopg.connect(database) as connection:  # the roles are taken back with the transaction
        connection.execute(
            f"CREATE ROLE {mark}; CREATE ROLE rds_replication;"
            " CREATE ROLE master CREATEROLE CREATEDB; SET LOCAL ROLE master".encode()
        )
        found = provider.detect(connection)
        assert found is not None
        assert logical in found.logical
        told = preflight.checks(
            connection, source="shop", tables=(), slot="headwater_x", publication="headwater_x"
        )
        (role,) = [check for check in told if check.name == "role"]
        assert CheckState.FAIL is role.state
        assert replicates in str(role.hint)

        connection.execute("RESET ROLE; GRANT rds_replication TO master; SET LOCAL ROLE master")
        told = preflight.checks(
            connection, source="shop", tables=(), slot="headwater_x", publication="headwater_x"
        )
        (role,) = [check for check in told if check.name == "role"]
        assert (CheckState.OK if found is provider.RDS else CheckState.FAIL) is role.state
        connection.rollback()
