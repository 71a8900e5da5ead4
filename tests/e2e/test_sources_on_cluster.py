"""The jobs of two sources on one Spark cluster; a worker and then a job are killed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.fix_services import fresh_database
from tests.fix_shell import Shell
from tests.support.two_databases import INVOICES, ORDERS, execute
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=6),
    pytest.mark.timeout(1800),
]
VIEWS = """
from headwater import source, view

till = source("till", tables=["orders"])
ledger = source("ledger", tables=["invoices"])
view.mirror("orders", till.orders, to=["table", "cache"])
view.mirror("invoices", ledger.invoices, to=["table", "cache"])
view.sql(
    "billed",
    "SELECT i.order_id AS id, o.status, i.note"
    " FROM invoices i JOIN orders o ON o.id = i.order_id",
    keys=["id"],
    to=["table"],
)
"""
CLUSTER = """
[spark]
workers = 2
worker_cores = 1
worker_memory_mib = 512
"""
SAME = (
    "SELECT count(*) AS n FROM billed b JOIN invoices i ON i.order_id = b.id"
    " JOIN orders o ON o.id = b.id WHERE o.status = b.status AND i.note = b.note"
)
JOBS = ("projections.till", "projections.ledger")
WORKERS = ("spark-worker-1", "spark-worker-2")


def test_views_of_two_sources_are_right_though_a_worker_and_a_job_are_killed(
    postgres_dsn: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path)
    with fresh_database(postgres_dsn) as till, fresh_database(postgres_dsn) as ledger:
        execute(till, ORDERS)
        execute(ledger, INVOICES)
        shell("init", ".", "--dsn", till, "--name", "till")
        shell("init", "--add-source", "ledger", "--dsn", ledger)
        (tmp_path / "views.py").write_text(VIEWS)
        with (tmp_path / "headwater.toml").open("a") as settings:
            settings.write(CLUSTER)
        try:
            shell("up", code=None)  # two drivers and four executors: it may not wait long enough
            wait_until(lambda: _ready(shell), "both jobs", timeout_s=LONG_S)
            _works_on_both_workers(shell)
            assert _rows(99) == _rows_after(shell, till, ledger, "paid", 1)
            _kill(shell, WORKERS[0])
            assert _rows(98) == _rows_after(shell, till, ledger, "sent", 2)
            _works_on_both_workers(shell)
            _kill(shell, JOBS[1])
            assert _rows(97) == _rows_after(shell, till, ledger, "seen", 3)
            _works_on_both_workers(shell)
        finally:
            shell("down")


def _rows(billed: int) -> dict[str, int]:
    """The rows of each view, with so many invoices left."""
    return {"orders": 200, "invoices": billed, "billed": billed}


def _rows_after(shell: Shell, till: str, ledger: str, status: str, number: int) -> dict[str, int]:
    """Changes both databases; returns the rows of the views, which are compared with them."""
    execute(till, "UPDATE orders SET status = %s WHERE id <= %s", status, 50 + number)
    execute(ledger, "DELETE FROM invoices WHERE order_id = %s", number)
    token = shell("token").stdout.strip()
    for view in ("orders", "invoices", "billed"):
        shell("view", "wait", view, token, "--timeout", "240")

    reports = shell.json("view", "verify")
    assert [] == [r for r in reports if r["missing"] or r["extra"] or r["different"]]
    assert [{"n": 100 - number}] == shell.json("query", SAME, "--at-least", token)
    return {report["view"]: report["rows"] for report in reports}


def _works_on_both_workers(shell: Shell) -> None:
    """Each worker has an executor of each job; nothing of the drivers works."""
    wait_until(
        lambda: [_applications(shell, name) for name in WORKERS],
        accept=lambda found: 2 == len(found[0]) and found[0] == found[1],
        timeout_s=LONG_S,
    )
    assert [] == [each for job in JOBS for each in _below(shell, job) if _daemon(each)]


def _applications(shell: Shell, worker: str) -> set[str]:
    """Applications with an executor below a worker."""
    found = [_words(process) for process in _below(shell, worker)]
    return {words[words.index("--app-id") + 1] for words in found if "--app-id" in words}


def _daemon(process: psutil.Process) -> bool:
    return "-m projections.job.spark.worker_daemon" in " ".join(_words(process))


def _kill(shell: Shell, name: str) -> None:
    """Kills a program with all that it runs, as a machine that goes."""
    below = _below(shell, name)
    for process in below:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert below
    wait_until(lambda: _ready(shell), f"{name} to be back", timeout_s=LONG_S)


def _ready(shell: Shell) -> bool:
    return shell("status", code=None).returncode == 0


def _below(shell: Shell, name: str) -> list[psutil.Process]:
    """The process of a program, and those below it."""
    services = shell.here("status", code=None)["services"]
    pid = next(service["pid"] for service in services if service["name"] == name)
    if pid is None:  # psutil would take this process
        return []
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
