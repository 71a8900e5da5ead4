"""GlobalShop on a Spark cluster of two worker processes, one of which is killed amid traffic."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import psutil
import pytest
from rich.console import Console

from cdc.broker.topics import extent
from headwater.demo.demo import run_demo
from headwater.demo.options import DemoOptions
from headwater.demo.result import STORES
from headwater.runtime import ServiceState
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.platform.platform import Platform

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=4),
    pytest.mark.timeout(1200),
]
WORKERS = ("spark-worker-1", "spark-worker-2")
PARTITIONS = 3


def test_globalshop_is_kept_by_two_workers_one_of_which_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_PROFILE", "cluster")
    home = tmp_path / ".headwater"
    options = DemoOptions(seconds=12.0, scale=0.1, home=home, chaos=WORKERS[:1])
    working: dict[str, list[psutil.Process]] = {}

    result = run_demo(
        options,
        Console(file=io.StringIO()),
        before_comparison=lambda stack, _places: look(stack, working),
    )

    assert result.verified
    assert {view.store for view in result.views} == set(STORES)
    assert all(view.rows > 0 for view in result.views)
    assert [WORKERS[0]] == [recovery.killed for recovery in result.recoveries]
    assert result.changes > 500
    assert WORKERS == tuple(working)
    assert [] == psutil.wait_procs([each for below in working.values() for each in below], 30)[1]


def look(stack: Platform, working: dict[str, list[psutil.Process]]) -> None:
    """Notes which processes of each worker do the work; the driver does none of it itself."""
    found = stack.status()
    assert found is not None
    driver = found.service("projections")
    assert driver is not None
    assert [] == pythons(driver.pid)
    for name in WORKERS:  # the one that was killed gets its executor back
        working[name] = wait_until(
            lambda name=name: executors(stack, name), f"an executor of {name}"
        )
    assert any(pythons(executor.pid) for below in working.values() for executor in below)
    killed = found.service(WORKERS[0])
    assert killed is not None
    assert (ServiceState.READY, 1) == (killed.state, killed.restarts)
    topic = "shop.public.orders"
    assert PARTITIONS == len(extent.bounds(stack.endpoints.kafka_bootstrap, frozenset([topic])))


def executors(stack: Platform, worker: str) -> list[psutil.Process]:
    """The JVMs below a worker."""
    found = stack.status()
    service = found.service(worker) if found else None
    if service is None or service.pid is None:
        return []
    return [child for child in children(service.pid) if "Executor" in " ".join(cmdline(child))]


def pythons(pid: int | None) -> list[int]:
    """Pids of Spark's Python workers below a process."""
    daemon = "-m projections.job.spark.worker_daemon"  # the JVM has the name among its settings
    return [child.pid for child in children(pid) if daemon in " ".join(cmdline(child))]


def children(pid: int | None) -> list[psutil.Process]:
    if pid is None:  # psutil would take this process
        return []
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
