"""A Spark cluster of ours: what a job meets there, and what becomes of it when parts of it die."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headwater import runtime
from headwater.runtime import RuntimeSpec, SparkCluster
from headwater.runtime.java.jars import ensure
from projections.planning.job_config import JobConfig

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=2),
    pytest.mark.timeout(1800),
]
CLUSTER = SparkCluster(workers=2, cores=1, memory_mb=512)
SCENARIO = """
import json, os, pickle, signal, sys
from urllib.request import urlopen
from headwater import runtime
from projections.errors import ClusterError, FolderNotSharedError
from projections.common.shared_folder import SharedFolder
from projections.job.spark import cluster
from projections.job.spark.session import start_session
from tests.waiting import wait_until

config, wide = pickle.load(sys.stdin.buffer)
found = {}

def killed(name):
    service = runtime.status(config.home).service(name)
    os.kill(service.pid, signal.SIGKILL)
    def back():
        now = runtime.status(config.home).service(name)
        return now.restarts > service.restarts and now.ready
    wait_until(back, f"{name} to be back")

def placed():
    # cores that the master knows to be taken, one of each worker
    port = json.loads((config.home / "run" / "ports.json").read_text())["spark-master-page"]
    with urlopen(f"http://127.0.0.1:{port}/json/", timeout=5) as page:
        workers = json.load(page)["workers"]
    return [worker["coresused"] for worker in workers if worker["state"] == "ALIVE"] == [1, 1]

def counted():
    return session.range(1000, numPartitions=4).selectExpr("id % 7 AS k").distinct().count()

cluster.EXECUTORS_WAIT_S = 4.0
try:
    start_session(wide)
except ClusterError as error:
    found["no room"] = error.code
    import pyspark.sql
    pyspark.sql.SparkSession.getActiveSession().stop()
cluster.EXECUTORS_WAIT_S = 90.0
session = start_session(config)
wait_until(lambda: cluster.executors(session) == 2, "both executors")
mark = cluster.shared(session, config.addresses.tables, "shop")
SharedFolder(config.addresses.tables, "shop", mark).check()
found["left in the folder"] = sorted(os.listdir(config.addresses.tables))
find = cluster.SharedFolder.marked
cluster.SharedFolder.marked = classmethod(
    lambda kind, root, source: kind(find(root, source).root, source, "another")
)
try:
    cluster.shared(session, config.addresses.tables, "shop")
except FolderNotSharedError as error:
    found["another folder"] = error.code
found["at first"] = counted()
killed("spark-master")
found["without its first master"] = counted()
wait_until(placed, "the new master's knowledge of both executors")
killed("spark-worker-1")
wait_until(lambda: cluster.executors(session) == 2, "an executor from the worker that came back")
found["on a worker that came back"] = counted()
session.stop()
print(json.dumps(found))
"""


def test_a_job_goes_on_when_master_and_worker_are_killed_and_is_told_what_it_cannot_have(
    tmp_path: Path,
) -> None:
    home = tmp_path / ".headwater"
    endpoints = runtime.up(
        RuntimeSpec(home=home, services={}, spark=CLUSTER, lifeline=True), timeout_s=240
    )
    try:
        config = job(home, endpoints.spark_url)
        too_wide = replace(config, conf={"spark.executor.memory": "9g"})
        done = subprocess.run(
            [sys.executable, "-c", SCENARIO],
            input=pickle.dumps((config, too_wide)),
            capture_output=True,
            timeout=600,
            check=False,
        )
    finally:
        runtime.down(home)

    assert 0 == done.returncode, done.stderr.decode()[-3000:] + said(home)
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "no room": "HW-P102",
        "left in the folder": [".mark-shop"],
        "another folder": "HW-P103",
        "at first": 7,
        "without its first master": 7,
        "on a worker that came back": 7,
    }
    found = runtime.status(home)
    assert found is not None
    assert not found.running


def said(home: Path) -> str:
    """What master, workers and executors said last."""
    logs = [*sorted((home / "log").glob("spark-*.log")), *sorted(home.glob("data/*/*/*/stderr"))]
    return "".join(f"\n{log.relative_to(home)}:\n{log.read_text()[-4000:]}" for log in logs)


def job(home: Path, master: str) -> JobConfig:
    return JobConfig.of_tables(
        "shop",
        home,
        tuple(ensure("spark", progress=False)),
        master=master,
        conf={"spark.executor.memory": "512m"},
    )
