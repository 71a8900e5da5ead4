"""Two databases in one project: each with its own capture, job and failures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.fix_services import fresh_database
from tests.fix_shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=8),
    pytest.mark.timeout(1800),
]

ORDERS = """
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL);
INSERT INTO orders SELECT i, 'new' FROM generate_series(1, 200) i;
"""
INVOICES = """
CREATE TABLE invoices (order_id bigint PRIMARY KEY, total numeric(12, 2) NOT NULL);
INSERT INTO invoices SELECT i, i / 7.0 FROM generate_series(1, 100) i;
"""
ALONE = """
from headwater import source, view

till = source("till", tables=["orders"])
view.mirror("orders", till.orders)
view.sql("by_status", "SELECT status, count(*) AS n FROM orders GROUP BY status", keys=["status"])
"""
LEDGER = """
ledger = source("ledger", tables=["invoices"])
view.mirror("invoices", ledger.invoices)
view.sql("billed", "SELECT 1 AS id, sum(total) AS total FROM invoices", keys=["id"])
"""
VIEWS = ALONE + LEDGER
JOIN = "SELECT count(*) AS n FROM orders o JOIN invoices i ON i.order_id = o.id"


@dataclass(frozen=True, slots=True)
class Project:
    """A project of two sources that runs.

    Attributes:
        shell: Its command line.
        till: DSN of the first source.
        ledger: DSN of the second.
        server: DSN of their server, with a role that may do everything.
    """

    shell: Shell
    till: str
    ledger: str
    server: str

    def verified(self, *options: str) -> dict[str, int]:
        """Asserts that every view equals its source; returns the rows of each."""
        reports = self.shell.json("view", "verify", *options)
        assert [] == [r for r in reports if r["missing"] or r["extra"] or r["different"]]
        return {report["view"]: report["rows"] for report in reports}


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def table_id(project: Project, view: str) -> str:
    """What tells a view's Delta table from one that is made anew."""
    tables = project.shell.folder / ".headwater" / "tables"
    return str(DeltaTable(str(tables / view)).metadata().id)


@pytest.fixture
def project(postgres_dsn: str, tmp_path: Path) -> Iterator[Project]:
    folder = tmp_path
    with fresh_database(postgres_dsn) as till, fresh_database(postgres_dsn) as ledger:
        execute(till, ORDERS)
        execute(ledger, INVOICES)
        made = Project(Shell(folder), till, ledger, postgres_dsn)
        made.shell("init", ".", "--dsn", till, "--name", "till")
        (folder / "views.py").write_text(ALONE)
        try:
            made.shell("up")
            kept = table_id(made, "orders")
            made.shell("down")
            with (folder / "headwater.toml").open("a") as settings:
                settings.write('\n[source.ledger]\ndsn = "${LEDGER_DSN}"\n')
            with (folder / ".env").open("a") as environment:
                environment.write(f"LEDGER_DSN={ledger}\n")
            (folder / "views.py").write_text(VIEWS)
            checks = {check["name"]: check["state"] for check in made.shell.json("doctor")}
            assert "fail" not in checks.values()
            assert {"source connection (till)", "source connection (ledger)"} <= checks.keys()
            made.shell("up")
            assert kept == table_id(made, "orders")
            yield made
        finally:
            made.shell("down")


def test_sources_are_captured_disturbed_repaired_and_removed_independently(
    project: Project,
) -> None:
    _views_equal_their_sources_and_are_queried_together(project)
    _a_view_is_rebuilt_beside_the_other_source(project)
    _a_database_that_is_down_stops_its_own_views_only(project)
    _a_lost_slot_stops_its_own_views_only_also_at_the_next_start(project)
    _one_source_is_removed_and_the_other_goes_on(project)


def _views_equal_their_sources_and_are_queried_together(project: Project) -> None:
    execute(project.till, "UPDATE orders SET status = 'paid' WHERE id <= 50")
    execute(project.ledger, "DELETE FROM invoices WHERE order_id > 90")
    tokens = {
        name: project.shell("token", "--source", name).stdout.strip() for name in ("till", "ledger")
    }

    for view, source in (("orders", "till"), ("billed", "ledger"), ("invoices", "ledger")):
        project.shell("view", "wait", view, tokens[source], "--timeout", "60")
    refused = project.shell("view", "wait", "invoices", tokens["till"], code=2).stderr

    assert "till" in refused
    assert {"orders": 200, "by_status": 2, "invoices": 90, "billed": 1} == project.verified()
    assert [{"n": 90}] == project.shell.json("query", JOIN)
    assert [{"n": 90}] == project.shell.json(
        "query", "SELECT count(*) AS n FROM invoices", "--at-least", tokens["ledger"]
    )
    assert [("till", True), ("ledger", True)] == [
        (each["source"], each["slot"]["active"]) for each in project.shell.json("source", "status")
    ]
    assert [] == project.shell.json("plan")["differences"]
    rows = project.shell.json("view", "status")
    assert {"till", "ledger"} == {row["source"] for row in rows}
    assert {""} == {row["state"] for row in rows}


def _a_view_is_rebuilt_beside_the_other_source(project: Project) -> None:
    project.shell("view", "rebuild", "invoices", "--from-source", "--cutover", "when-explained")

    assert {"orders", "by_status", "invoices", "billed"} == {
        view.partition(".")[0] for view in project.verified()
    }
    assert [{"n": 90}] == project.shell.json("query", JOIN)


def _a_database_that_is_down_stops_its_own_views_only(project: Project) -> None:
    _allow_connections(project, allowed=False)
    try:
        execute(project.till, "INSERT INTO orders VALUES (1001, 'new')")
        token = project.shell("token", "--source", "till").stdout.strip()
        project.shell("view", "wait", "orders", token, "--timeout", "60")
        failed = project.shell("view", "verify", code=1)

        assert 201 == project.verified("--source", "till")["orders"]
        assert "source ledger" in failed.stderr
    finally:
        _allow_connections(project, allowed=True)
    execute(project.ledger, "INSERT INTO invoices VALUES (1001, 7)")
    token = project.shell("token", "--source", "ledger").stdout.strip()
    project.shell("view", "wait", "invoices", token, "--timeout", "120")
    assert 91 == max(rows for view, rows in project.verified().items() if "invoices" in view)


def _allow_connections(project: Project, *, allowed: bool) -> None:
    """Takes the second database away, with all its sessions, or gives it back."""
    name = str(conninfo_to_dict(project.ledger)["dbname"])
    query = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    with psycopg.connect(project.server, autocommit=True) as admin:
        admin.execute(query.format(sql.Identifier(name), sql.Literal(allowed)))
        if not allowed:
            admin.execute(end, [name])


def _a_lost_slot_stops_its_own_views_only_also_at_the_next_start(project: Project) -> None:
    project.shell("source", "pause", "--source", "ledger")
    execute(project.server, "SELECT pg_drop_replication_slot('headwater_ledger')")
    execute(project.ledger, "UPDATE invoices SET total = total + 1 WHERE order_id <= 20")
    project.shell("down")
    execute(project.till, "DELETE FROM orders WHERE id = 1001")

    refused = project.shell("up", code=3).stderr
    assert "HW-C070" in refused
    assert 200 == project.verified("--source", "till")["orders"]
    losses = {
        each["source"]: each["loss"] and each["loss"]["code"]
        for each in project.shell.json("source", "status", code=3)
    }
    assert {"till": None, "ledger": "HW-C070"} == losses

    project.shell("source", "repair", "--yes", "--source", "ledger")
    rows = project.verified()
    assert (200, 91) == (
        rows["orders"],
        max(found for view, found in rows.items() if "invoices" in view),
    )


def _one_source_is_removed_and_the_other_goes_on(project: Project) -> None:
    shown = project.shell.json("source", "remove", "--source", "ledger")
    before = _pids(project)
    log = project.shell.folder / ".headwater" / "log" / "projections.ledger.log"
    logged = log.stat().st_size

    _removal_killed_after(project, "stopped the job")
    execute(project.till, "INSERT INTO orders VALUES (1002, 'new')")
    assert 201 == _delivered(project)
    _removal_killed_after(project, "removed connector")
    execute(project.till, "INSERT INTO orders VALUES (1003, 'new')")
    assert 202 == _delivered(project)
    done = project.shell("source", "remove", "--source", "ledger", "--yes").stderr
    execute(project.till, "DELETE FROM orders WHERE id > 1001")
    assert 200 == _delivered(project)

    gone = {f"{command}.ledger" for command in ("projections", "capture")}
    assert {name: pid for name, pid in before.items() if name not in gone} == _pids(project)
    assert "stopped the servers" not in done
    assert "ERROR" not in log.read_bytes()[logged:].decode().upper()
    assert project.shell("status").returncode == 0  # the job is not missing, it was suspended
    project.shell("down")
    (project.shell.folder / "views.py").write_text(ALONE)
    settings = project.shell.folder / "headwater.toml"
    settings.write_text(settings.read_text().partition("\n[source.ledger]")[0] + "\n")

    assert {"slot headwater_ledger", "slot headwater_till"} - {
        f"{item['part']} {item['name']}" for item in shown["items"] if item["goes"]
    } == {"slot headwater_till"}
    project.shell("up")
    execute(project.till, "INSERT INTO orders VALUES (1004, 'new')")
    assert 201 == project.verified()["orders"]
    assert [{"n": 91}] == project.shell.json("query", "SELECT count(*) AS n FROM invoices")


def _pids(project: Project) -> dict[str, int]:
    services = project.shell.json("status")["services"]
    return {each["name"]: each["pid"] for each in services if each["pid"]}


def _delivered(project: Project) -> int:
    """Rows of a view of the first source, once it has everything that was committed."""
    token = project.shell("token", "--source", "till").stdout.strip()
    project.shell("view", "wait", "orders", token, "--timeout", "60")
    return project.verified("--source", "till")["orders"]


def _removal_killed_after(project: Project, step: str) -> None:
    command = [sys.executable, "-m", "headwater", "source", "remove", "--source", "ledger", "--yes"]
    with subprocess.Popen(
        command, cwd=project.shell.folder, stderr=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stderr is not None
        assert any(line.startswith(step) for line in killed.stderr), step
        killed.kill()
