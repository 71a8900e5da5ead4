"""Rebuilds, a backlog and a verification on a cluster of three workers, killed at each stage.

So is the driver. The tables must be those that a replay without Spark makes of the same records.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from deltalake import DeltaTable

from cdc.broker.topics import topics
from cdc.broker.topics.topics import TopicSpec
from headwater import runtime
from headwater.runtime import RuntimeSpec, SparkCluster
from headwater.runtime.java.jars import ensure
from projections.archive import replay
from projections.archive.task import ReplayOptions, ReplayResult, ReplayState, ReplayTarget
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.errors import RebuildSpaceError
from projections.job.backlog_tasks import BacklogTasks
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.stores.factory import open_sink
from projections.verification.column_pass import ColumnPass
from projections.verification.truth import SourceTruth
from projections.verification.verify import verify
from projections.versions import bulk_requests, job_engine
from projections.versions.bulk_requests import BulkRequests
from projections.versions.fill import FillOptions
from projections.versions.job_engine import JobEngine
from tests.fix_archive import archived
from tests.fix_log import PLAN, TOPIC, Source, numbered
from tests.fix_services import fresh_database
from tests.programs.rebuild_driver import COMMITS
from tests.support.tables_query import send
from tests.support.task_halts import TaskHalts
from tests.support.wide_table import damage, fill, make
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.changes.record import Record
    from projections.planning.view_plan import ViewPlan

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
ROOT = Path(__file__).resolve().parents[4]
CLUSTER = SparkCluster(workers=3, cores=1, memory_mb=512)
WORKERS = ("spark-worker-1", "spark-worker-2", "spark-worker-3")
ROWS = range(1, 900)
TABLE_STAGES = ("fold", "second fold", "fill")


def traffic(archive: Path) -> list[Record]:
    """Archives and returns what transactions write that insert, change, move and delete rows."""
    random, source = Random(11), Source()  # noqa: S311  # no secret
    source.together([[("copy", *ROWS[::2])]], random)
    for _ in range(150):
        keys = random.sample(ROWS, 24)
        steps = [step(random, key) for key in keys]
        source.together([steps[:12], steps[12:]], random)
    records = numbered(source.topic)
    for start in range(0, len(records), 500):
        archived(archive, TOPIC, records[start : start + 500])
    return records


def step(random: Random, key: int) -> tuple[Any, ...]:
    kind = random.choice(("insert", "insert", "note", "note", "big", "delete", "move"))
    return (kind, key, random.choice(ROWS)) if kind == "move" else (kind, key)


class Cluster:
    """Master, workers and driver, and the archive that they rebuild views from."""

    def __init__(self, home: Path, master: str, **addresses: str) -> None:
        self.halts = TaskHalts(home / "halts")
        config = JobConfig.of_tables(
            "shop",
            home,
            tuple(ensure("spark", progress=False)),
            master=master,
            code=(ROOT,),
            rebuild_rows_min=1,
            conf={
                "spark.executor.memory": "512m",
                "spark.log.level": "ERROR",
                "spark.python.daemon.module": "tests.programs.halting_daemon",
                "spark.executorEnv.HEADWATER_TEST_HALTS": str(self.halts.folder),
            },
        )
        self.config = replace(config, **addresses)
        self.records = traffic(config.archive)
        self._driver: subprocess.Popen[bytes] | None = None

    def start_driver(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            return
        log = self.config.home / "driver.log"
        with log.open("ab") as said:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.programs.rebuild_driver"],
                stdin=subprocess.PIPE,
                stderr=said,
                stdout=said,
                cwd=ROOT,
            )
        assert self._driver.stdin is not None
        pickle.dump((self.config, len(WORKERS), self.halts.folder), self._driver.stdin)
        self._driver.stdin.flush()
        requests = BulkRequests(self.config)
        wait_until(lambda: requests.server() is not None, self.said, timeout_s=LONG_S)

    def kill_driver(self) -> None:
        """Kills the driver with its JVM, as hard as can be."""
        assert self._driver is not None
        processes = [*psutil.Process(self._driver.pid).children(recursive=True)]
        self._driver.kill()
        for process in processes:
            process.kill()
        self._driver.wait()
        assert self._driver.stdin is not None
        self._driver.stdin.close()

    def stop_driver(self) -> None:
        if self._driver is not None and self._driver.stdin is not None:
            self._driver.stdin.close()
            self._driver.wait(60)

    def write_backlog(self, plan: ViewPlan) -> Path:
        """Has the driver write what a view's topic has; returns the file that it then makes."""
        assert self._driver is not None
        assert self._driver.stdin is not None
        pickle.dump(plan, self._driver.stdin)
        self._driver.stdin.flush()
        return self.config.home / plan.name

    def kill_worker_at(self, stage: str) -> None:
        """Kills the worker that halts at a stage, as a machine that goes with all that it runs."""
        pid = wait_until(lambda: self.halts.halted(stage), self.said, timeout_s=LONG_S)
        for process in wait_until(lambda: self._worker_of(pid), "its worker", timeout_s=LONG_S):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _worker_of(self, pid: int) -> list[psutil.Process]:
        """The worker with all that it runs, a process among it."""
        status = runtime.status(self.config.home)
        assert status is not None
        for name in WORKERS:
            worker_pid = status.service(name).pid
            if not worker_pid:  # it is being restarted; without a pid, psutil takes this process
                continue
            with suppress(psutil.NoSuchProcess):
                worker = psutil.Process(worker_pid)
                below = worker.children(recursive=True)
                if pid in {process.pid for process in below}:
                    return [worker, *below]
        return []

    def said(self) -> str:
        """The end of the driver's log, for who looks at a test that failed."""
        return (self.config.home / "driver.log").read_text()[-4000:]

    def left_behind(self) -> list[str]:
        folder = self.config.checkpoint(Store.TABLE).parent / ".rebuilds"
        requests = [path.name for path in folder.iterdir() if path.is_dir()]
        tables = self.config.addresses.tables
        return requests + [path.name for path in tables.glob(".*.fill*")]


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory,
    cache_url: str,
    kafka_bootstrap: str,
    postgres_dsn: str,
) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("cluster") / ".headwater"
    spec = RuntimeSpec(home=home, services={}, spark=CLUSTER, lifeline=True)
    endpoints = runtime.up(spec, timeout_s=240)
    addresses = {"cache_url": cache_url, "bootstrap": kafka_bootstrap}
    try:
        with fresh_database(postgres_dsn) as dsn:
            made = Cluster(home, endpoints.spark_url, source_dsn=dsn, **addresses)
            yield made
            made.stop_driver()
    finally:
        runtime.down(home)


@pytest.fixture
def cluster(started: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(replay, "BULK_RECORDS", 400)
    monkeypatch.setattr(job_engine, "GONE_S", LONG_S)
    started.start_driver()
    return started


def filled(
    config: JobConfig, plan: ViewPlan, *, by_job: bool = True, **options: Any
) -> ReplayResult:
    """What a command does that fills a version."""
    (store,) = plan.to
    filling = FillOptions()
    with job_engine.fenced(config, plan, filling.stopped):
        bulk = JobEngine(config, plan) if by_job else None
        opened = partial(open_sink, store, config.addresses)
        target = ReplayTarget((plan,), opened, bulk=bulk)
        return replay.replay(config.archive, [target], ReplayOptions(**options))


def left(config: JobConfig, plan: ViewPlan) -> Any:
    """Rows, and versions of all keys with those of deletes."""
    (store,) = plan.to
    opened: Any = open_sink(store, config.addresses)
    with closing(opened) as sink:
        if store is Store.TABLE:
            names = (plan.name, f"{plan.name}.deleted")
            tables = [DeltaTable(str(config.addresses.tables / name)) for name in names]
            found = [table.to_pyarrow_table().to_pylist() for table in tables]
            return [sorted(rows, key=lambda row: row["id"]) for rows in found]
        if store is Store.SEARCH:
            sink.engine.request("POST", f"/{plan.name}/_refresh")
        rows = sorted(map(dict, sink.documents(plan)), key=lambda row: row["id"])
        return rows, sink.versions(plan, [RowChange((key,), 0, None, 0) for key in ROWS])


def as_by_command(config: JobConfig, plan: ViewPlan, result: ReplayResult) -> None:
    """Compares what is there with what a replay without Spark makes of the same archive."""
    other = replace(plan, name=f"{plan.name}_by_command")
    expected = filled(config, other, by_job=False)

    assert left(config, other) == left(config, plan)
    assert expected.ends == result.ends
    assert expected.records == result.records
    assert sorted(each.key for each in expected.waiting[0]) == sorted(
        each.key for each in result.waiting[0]
    )


def view(name: str, store: Store) -> ViewPlan:
    return replace(PLAN, name=f"{name}_{os.getpid()}", to=frozenset({store}))


def test_a_table_is_the_same_with_a_worker_killed_at_each_stage(cluster: Cluster) -> None:
    plan = view("each", Store.TABLE)
    cluster.halts.want(*TABLE_STAGES)
    with ThreadPoolExecutor(1) as command:
        result = command.submit(filled, cluster.config, plan)
        for stage in TABLE_STAGES:
            cluster.kill_worker_at(stage)

        as_by_command(cluster.config, plan, result.result(LONG_S))
    assert [] == cluster.left_behind()


def test_a_cache_is_the_same_with_a_worker_killed_while_it_delivers(cluster: Cluster) -> None:
    in_store(cluster, Store.CACHE)


def test_a_backlog_is_written_with_a_worker_killed_while_it_reads(cluster: Cluster) -> None:
    plan = replace(view("backlog", Store.TABLE), topic=f"{PLAN.source}.public.of_cluster")
    config, by_command = cluster.config, view("backlog_by_command", Store.TABLE)
    topics.ensure(config.bootstrap, [TopicSpec(plan.topic)])
    send(config.bootstrap, plan.topic, cluster.records)
    cluster.halts.want("backlog")

    written = cluster.write_backlog(plan)
    cluster.kill_worker_at("backlog")
    wait_until(written.exists, cluster.said, timeout_s=LONG_S)

    filled(config, by_command, by_job=False)
    assert left(config, by_command) == left(config, plan)
    assert [] == list(BacklogTasks.of(config.addresses.tables, config.source).folder.iterdir())
    topics.delete(config.bootstrap, [plan.topic])


def test_a_table_is_compared_with_a_worker_killed_while_it_reads(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_requests, "TASKS_MIN", len(WORKERS) - 1)
    config, draw = cluster.config, Random(5)  # noqa: S311  # no secret
    monkeypatch.setattr(ColumnPass, "steps", lambda _: pytest.fail("the job has not done it"))
    with psycopg.connect(config.source_dsn, autocommit=True) as connection:
        plan = make(connection, "id", draw, 400, fillfactor=10)
        connection.execute("ANALYZE wide")
        spec = JobSpec(config, (plan,))
        damage(connection, spec, draw, fill(spec))
        with monkeypatch.context() as patch:  # row by row, as documents
            patch.setattr(SourceTruth, "batches", lambda _: None)
            (expected,) = verify(spec, resting=True)
    # workers that tests before have killed come back
    wait_until(BulkRequests(config).comparing, "enough free tasks", timeout_s=LONG_S)
    cluster.halts.want("comparison")
    with ThreadPoolExecutor(1) as command:
        done = command.submit(verify, spec, resting=True)
        cluster.kill_worker_at("comparison")

        assert [expected] == done.result(LONG_S)
    assert expected.different > 10
    assert [] == cluster.left_behind()


@pytest.mark.soak(minutes=2)
def test_an_index_is_the_same_with_a_worker_killed_while_it_delivers(
    cluster: Cluster, search_url: str
) -> None:
    cluster.kill_driver()
    cluster.config = replace(cluster.config, search_url=search_url)
    cluster.start_driver()
    in_store(cluster, Store.SEARCH)


def in_store(cluster: Cluster, store: Store) -> None:
    plan = view("delivered", store)
    cluster.halts.want("store")
    with ThreadPoolExecutor(1) as command:
        result = command.submit(filled, cluster.config, plan)
        cluster.kill_worker_at("store")

        as_by_command(cluster.config, plan, result.result(LONG_S))
    assert [] == cluster.left_behind()
    for each in (plan, replace(plan, name=f"{plan.name}_by_command")):
        opened: Any = open_sink(store, cluster.config.addresses)
        with closing(opened) as sink:
            sink.drop(each)


@pytest.mark.soak(minutes=3)
@pytest.mark.parametrize("stage", [*TABLE_STAGES, *COMMITS])
def test_a_table_is_the_same_with_the_driver_killed_at_each_stage(
    cluster: Cluster, stage: str
) -> None:
    plan = view(f"driver_{stage.replace(' ', '_')}", Store.TABLE)
    cluster.halts.want(stage)
    with ThreadPoolExecutor(1) as command:
        result = command.submit(filled, cluster.config, plan)
        wait_until(lambda: cluster.halts.halted(stage), cluster.said, timeout_s=LONG_S)
        cluster.kill_driver()
        cluster.start_driver()

        as_by_command(cluster.config, plan, result.result(LONG_S))
    assert [] == cluster.left_behind()


@pytest.mark.soak(minutes=2)
def test_without_room_on_an_executor_a_rebuild_ends_and_resumes(cluster: Cluster) -> None:
    plan, noted = view("full", Store.TABLE), list[ReplayState]()
    for name in WORKERS:
        cluster.halts.fill_disk(name)
    try:
        with pytest.raises(RebuildSpaceError) as ended:
            filled(cluster.config, plan, note=noted.append)
    finally:
        cluster.halts.free_disk()

    assert "resumes" in (ended.value.hint or "")
    assert ended.value.retriable
    assert [] == cluster.left_behind()
    result = filled(cluster.config, plan, resume=noted[-1] if noted else None)
    as_by_command(cluster.config, plan, result)
