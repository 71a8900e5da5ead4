"""A managed server's database: its administrator is no superuser, and Headwater needs none."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest

from cdc.postgres import session
from tests.fix_shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=3),
    pytest.mark.timeout(900),
]

# What the administrators of Cloud SQL, Azure and Supabase have; see cdc.postgres.provider.
RIGHTS = "LOGIN NOSUPERUSER CREATEDB CREATEROLE REPLICATION"
SCHEMA = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, note text);
CREATE TABLE lines (order_id bigint, line int, price numeric(12, 2), PRIMARY KEY (order_id, line));
INSERT INTO customers SELECT i, 'customer ' || i, NULL FROM generate_series(1, 300) i;
INSERT INTO lines SELECT i, 1, i / 7.0 FROM generate_series(1, 300) i;
"""
TRAFFIC = """
UPDATE customers SET note = 'noted' WHERE id % 10 = 0;
DELETE FROM customers WHERE id % 11 = 0;
UPDATE lines SET line = 2, price = price + 0.01 WHERE order_id <= 20;
ALTER TABLE customers ADD COLUMN city text DEFAULT 'Bonn';
INSERT INTO customers VALUES (1000, 'new', NULL, 'Kiel');
"""


@pytest.fixture
def administrator(database: str) -> Iterator[str]:
    """DSN of a role with the rights of a managed server's administrator, who owns the database."""
    name, password, capture = f"m_{secrets.token_hex(4)}", "managed", f"c_{secrets.token_hex(4)}"
    parts = urlsplit(database)
    place = f"{parts.hostname}:{parts.port}"
    dsn = parts._replace(netloc=f"{name}:{password}@{place}").geturl()
    with session.connect(database) as connection:
        for statement in (
            f"CREATE ROLE {name} {RIGHTS} PASSWORD '{password}'",
            f"GRANT pg_monitor, pg_signal_backend TO {name}",
            f'ALTER DATABASE "{parts.path[1:]}" OWNER TO {name}',
        ):
            connection.execute(statement.encode())
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA)
    yield f"{dsn} {capture}"
    with session.connect(database) as connection:
        connection.execute(f'ALTER DATABASE "{parts.path[1:]}" OWNER TO CURRENT_USER'.encode())
        for role in (capture, name):
            connection.execute(f"DROP OWNED BY {role} CASCADE".encode())
            connection.execute(f"DROP ROLE {role}".encode())


def test_a_managed_database_is_captured_with_the_rights_that_it_gives(
    administrator: str, tmp_path: Path
) -> None:
    dsn, capture = administrator.split(" ")
    parts = urlsplit(dsn)
    Shell(tmp_path)("init", "shop", "--dsn", dsn)
    shell = Shell(tmp_path / "shop")
    printed = shell.json("source", "role", "--name", capture, "--managed", "cloudsql")
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in printed:
            connection.execute(statement["sql"])
        connection.execute(f"ALTER ROLE {capture} PASSWORD 'captures'".encode())
    reader = parts._replace(netloc=f"{capture}:captures@{parts.hostname}:{parts.port}").geturl()
    settings = shell.folder / "headwater.toml"
    begun = "[source.shop]\n"
    text = settings.read_text()
    settings.write_text(text.replace(begun, f'{begun}capture_dsn = "{reader}"\n', 1))

    checks = {check["name"]: check for check in shell.json("doctor")}
    assert "fail" not in {check["state"] for check in checks.values()}
    assert "warn" == checks["event triggers"]["state"]
    assert "comparison" in checks["event triggers"]["detail"]
    try:
        shell("up")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TRAFFIC)
        reports = shell.json("view", "verify")
        assert all(r["missing"] == r["extra"] == r["different"] == 0 for r in reports)
        assert {274, 300} == {report["rows"] for report in reports}
        count = "SELECT count(*) AS n, count(DISTINCT city) AS cities FROM customers"
        assert [{"n": 274, "cities": 2}] == shell.json("query", count)
        assert [] == shell.json("plan")["differences"]
        shell("source", "remove", "--yes")
        with psycopg.connect(dsn, autocommit=True) as connection:
            left = connection.execute(
                "SELECT (SELECT count(*) FROM pg_replication_slots"
                "         WHERE database = current_database()),"
                "       (SELECT count(*) FROM pg_publication), to_regnamespace('headwater')"
            ).fetchone()
        assert (0, 0, None) == left
    finally:
        shell("down", code=None)
