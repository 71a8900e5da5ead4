"""A derived view over two databases of two servers follows both, whatever is killed."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from headwater import runtime
from headwater.runtime.spec import RuntimeSpec, ServiceName, Spawned
from tests.fix_services import fresh_database
from tests.fix_shell import Shell
from tests.support.two_databases import INVOICES, ORDERS, execute
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=5),
    pytest.mark.timeout(900),
]

BILLED = """
view.sql(
    "billed",
    "SELECT i.order_id AS id, o.status, i.note"
    " FROM invoices i JOIN orders o ON o.id = i.order_id",
    keys=["id"],
)
"""
SAME = (
    "SELECT count(*) AS n FROM billed b JOIN invoices i ON i.order_id = b.id"
    " JOIN orders o ON o.id = b.id WHERE o.status = b.status AND i.note = b.note"
)


@pytest.fixture
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("other")
    spec = RuntimeSpec(home=home, services={ServiceName.POSTGRES: Spawned()}, lifeline=True)
    found = runtime.up(spec)
    assert found.postgres_dsn is not None
    yield found.postgres_dsn
    runtime.down(home)


def test_a_view_over_two_servers_follows_both_though_their_jobs_are_killed(
    postgres_dsn: str, other_server: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path)
    with fresh_database(postgres_dsn) as till, fresh_database(other_server) as ledger:
        execute(till, ORDERS)
        execute(ledger, INVOICES)
        shell("init", ".", "--dsn", till, "--name", "till")
        shell("init", "--add-source", "ledger", "--dsn", ledger)
        with (tmp_path / "views.py").open("a") as views:
            views.write(BILLED)
        try:
            shell("up")
            _follows_both(shell, till, ledger)
            _goes_on_after_a_kill(shell, till, ledger)
            _follows_a_cutover(shell)
            _forgets(shell, ledger)
        finally:
            shell("down")


def _follows_both(shell: Shell, till: str, ledger: str) -> None:
    execute(till, "UPDATE orders SET status = 'paid' WHERE id <= 50")
    execute(ledger, "DELETE FROM invoices WHERE order_id > 90")
    token = shell("token").stdout.strip()
    shell("view", "wait", "billed", token, "--timeout", "120")

    assert [{"n": 90}] == shell.json("query", SAME, "--at-least", token, "--timeout", "120")
    assert [] == shell.json("plan")["differences"]
    places = {
        (row["source"], row["store"])
        for row in shell.json("view", "status", code=None)
        if row["view"] == "billed"
    }
    stores = ("table", "search", "cache")
    assert {(source, store) for source in ("till", "ledger") for store in stores} == places
    _require_verified(shell, 90)


def _require_verified(shell: Shell, rows: int) -> None:
    reports = shell.json("view", "verify", "billed")
    assert [] == [r for r in reports if r["missing"] or r["extra"] or r["different"]]
    assert {rows} == {report["rows"] for report in reports}


def _goes_on_after_a_kill(shell: Shell, till: str, ledger: str) -> None:
    for number in range(2):
        pids = {
            service["name"]: service["pid"]
            for service in shell.json("status", code=None)["services"]
            if service["name"].startswith("projections.")
        }
        assert 2 == len(pids)
        execute(till, "UPDATE orders SET status = %s WHERE id > %s", f"sent {number}", 50 * number)
        execute(ledger, "INSERT INTO invoices VALUES (%s, 'late')", 91 + number)
        for pid in pids.values():
            os.kill(int(pid), signal.SIGKILL)
        execute(till, "UPDATE orders SET status = 'seen' WHERE id = %s", number + 1)
        wait_until(lambda: shell("status", code=None).returncode == 0, "the jobs", timeout_s=240)
    token = shell("token").stdout.strip()
    shell("view", "wait", "billed", token, "--timeout", "240")

    assert [{"n": 92}] == shell.json("query", SAME, "--at-least", token, "--timeout", "60")
    _require_verified(shell, 92)


def _follows_a_cutover(shell: Shell) -> None:
    shell("view", "rebuild", "invoices", "--from-source", "--cutover", "when-explained")
    shell("view", "rebuild", "billed", "--cutover", "when-explained")
    token = shell("token").stdout.strip()
    shell("view", "wait", "billed", token, "--timeout", "120")

    assert [{"n": 92}] == shell.json("query", SAME)
    _require_verified(shell, 92)


def _forgets(shell: Shell, ledger: str) -> None:
    execute(ledger, "DELETE FROM invoices WHERE order_id = 7")
    certificate = shell.json("forget", "invoices", "7", "--source", "ledger", "--yes")

    assert certificate["complete"]
    assert [{"n": 91}] == shell.json("query", SAME)
