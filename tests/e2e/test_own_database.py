"""A user's own database, from `init` to `down`, by the command line alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest
from deltalake import DeltaTable

from tests.fix_shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=3),
    pytest.mark.timeout(1200),
]

SCHEMA = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, note text);
CREATE TABLE "Order Lines" (order_id bigint, line int, price numeric(12, 2) NOT NULL,
                            PRIMARY KEY (order_id, line));
CREATE TABLE visits (seen_at timestamptz NOT NULL, page text NOT NULL);
INSERT INTO customers SELECT i, 'customer ' || i, CASE i % 3 WHEN 0 THEN '' END
  FROM generate_series(1, 300) i;
INSERT INTO "Order Lines" SELECT i, 1, i / 7.0 FROM generate_series(1, 300) i;
INSERT INTO visits SELECT now(), 'page ' || i FROM generate_series(1, 50) i;
"""

TRAFFIC = """
UPDATE customers SET note = NULL WHERE id % 10 = 0;
DELETE FROM customers WHERE id % 11 = 0;
UPDATE "Order Lines" SET line = 2, price = price + 0.01 WHERE order_id <= 20;
INSERT INTO visits VALUES (now(), 'again'), (now(), 'again');
"""
LATER = """
UPDATE customers SET note = 'later' WHERE id % 7 = 0;
DELETE FROM customers WHERE id = 1;
UPDATE "Order Lines" SET line = 3, price = price - 0.01 WHERE order_id <= 30;
INSERT INTO visits VALUES (now(), 'again'), (now(), 'later');
"""


@pytest.fixture
def shell(database: str, tmp_path: Path) -> Iterator[Shell]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SCHEMA)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / ".gitignore").write_text("mine")
    outside = Shell(tmp_path)
    # a table without a key is captured only if it is named
    tables = ("--tables", "customers", "--tables", "Order Lines", "--tables", "visits")
    wrote = outside("init", "shop", "--dsn", database, *tables)
    assert "visits has no primary key" in wrote.stderr
    assert ["mine", ".env", ".headwater/"] == (
        (tmp_path / "shop" / ".gitignore").read_text().split()
    )
    inside = Shell(tmp_path / "shop")
    yield inside
    inside("down")


def test_a_users_database_is_captured_projected_verified_and_let_go(
    shell: Shell, database: str
) -> None:
    checks = {check["name"]: check["state"] for check in shell.json("doctor")}
    assert "fail" not in checks.values()
    assert "warn" == checks["table public.visits"]

    started = shell("up")
    assert "first change event" in started.stderr
    assert "views are being kept" in started.stderr
    assert [] == shell.json("plan")["differences"]  # also while the first rows are on their way
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TRAFFIC)

    reports = shell.json("view", "verify")
    assert 3 * 3 == len(reports)
    assert all(r["missing"] == r["extra"] == r["different"] == 0 for r in reports)
    assert {273, 300, 52} == {report["rows"] for report in reports}

    count = "SELECT count(*) AS n, count(note) AS noted FROM customers"
    assert [{"n": 273, "noted": noted(database)}] == shell.json("query", count)
    newest = shell.json("view", "versions")[-1]
    assert 3 == newest["views"]
    assert [{"n": 273, "noted": noted(database)}] == shell.json(
        "query", count, "--as-of", newest["applied_through"]
    )
    refused = shell.json("query", count, "--as-of", "0/1", code=2)["error"]
    assert "HW-Q005" == refused["code"]
    explained = shell.json("view", "explain", "customers")
    assert ["public.customers"] == explained["inputs"]
    assert {"cache", "search", "table"} == explained["sinks"].keys()
    stable = explained["sinks"]["table"][-1].removeprefix("read it at ")
    assert 273 == DeltaTable(stable).to_pyarrow_table().num_rows
    assert "did you mean customers?" in shell("view", "explain", "custmers", code=2).stderr
    traced = shell.json("trace", "customers", "1")
    assert {"has it"} == {stored["state"] for stored in traced["stores"]}
    assert traced["changes"]
    assert (
        "key of view customers has 1 parts" in shell("trace", "customers", "1", "2", code=2).stderr
    )
    slot = shell.json("source", "slot")["slot"]
    assert slot["active"]
    assert "RUNNING" == shell.json("source", "status")["task_state"]

    before = pids(shell)
    shell("up")
    assert before == pids(shell)
    secret = database.split(":")[2].split("@", maxsplit=1)[0]
    assert not [path for path in logs(shell) if secret in path.read_text(errors="replace")]

    shell("down")
    assert not [pid for pid in before.values() if psutil.pid_exists(pid)]
    assert [{"n": 273, "noted": noted(database)}] == shell.json("query", count)
    assert 3 == shell("status", code=3).returncode

    # a stopped project goes on where it was
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(LATER)
    shell("up")
    reports = shell.json("view", "verify")
    assert all(r["missing"] == r["extra"] == r["different"] == 0 for r in reports)
    assert {272, 300, 54} == {report["rows"] for report in reports}


def noted(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT count(note) FROM customers").fetchone()
    assert row is not None
    return int(row[0])


def pids(shell: Shell) -> dict[str, int]:
    services = shell.json("status")["services"]
    return {service["name"]: service["pid"] for service in services if service["pid"]}


def logs(shell: Shell) -> list[Path]:
    return sorted((shell.folder / ".headwater" / "log").glob("*.log"))
