"""The jobs of two sources on one Spark cluster: each has its executors, also after a kill."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from headwater import runtime
from headwater.platform.specs import job_config, runtime_spec
from headwater.project.project import open_project
from headwater.runtime.java.jars import ensure
from projections.job.spark import class_archive
from projections.planning.job_config import JobConfig
from tests.waiting import LONG_S, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
ROOT = Path(__file__).resolve().parents[4]
SOURCES = ("till", "ledger")
WORKERS = 2
SETTINGS = "[spark]\nworkers = 2\nworker_cores = 1\nworker_memory_mib = 512\n" + "".join(
    f'[source.{name}]\ndsn = "postgresql://u@db/{name}"\n' for name in SOURCES
)
GROUPS = 7


class Job:
    """The Spark of a job, in a process of its own."""

    def __init__(self, config: JobConfig, wait_s: float = LONG_S) -> None:
        self.log = config.home / "log" / f"job-{config.source}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.programs.cluster_job"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
            )
        assert self.process.stdin is not None
        pickle.dump((config, WORKERS, wait_s), self.process.stdin)
        self.process.stdin.flush()

    def work(self) -> None:
        """Has it use all its executors; `answer` says what came of that."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Waits for its next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-4000:]
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Ends it."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait(60)


def test_jobs_of_two_sources_share_the_workers_and_a_third_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    home = tmp_path / ".headwater"
    declared = "".join(f'source("{name}", ["a"])\n' for name in SOURCES)
    (tmp_path / "views.py").write_text(f"from headwater import source\n{declared}")
    (tmp_path / "headwater.toml").write_text(SETTINGS)
    project = open_project(tmp_path / "headwater.toml", home=home)
    spec = runtime_spec(project, tmp_path / "headwater.toml", lifeline=True)
    endpoints = runtime.up(replace(spec, services={}, commands=()), timeout_s=240)
    configs = [job_config(part, "", endpoints) for part in project.parts]
    try:
        with ExitStack() as held:
            jobs = [Job(config) for config in configs]
            for job in jobs:
                held.callback(job.close)
            _each_has_an_executor_on_each_worker(home, jobs)
            _another_ends_with_an_error(replace(configs[0], source="third"))
            _both_go_on_after_a_kill(home, jobs)
            assert {".mark-till", ".mark-ledger"} == {
                path.name for path in configs[0].addresses.tables.iterdir()
            }
    finally:
        runtime.down(home)


def test_a_cluster_that_neither_takes_nor_refuses_a_job_ends_it_in_time(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it listens, and answers nothing
        config = JobConfig.of_tables(
            "till",
            tmp_path,
            tuple(ensure("spark", progress=False)),
            master=f"spark://127.0.0.1:{silent.getsockname()[1]}",
        )
        job = Job(config, wait_s=5.0)
        said = job.answer()
        job.close()

    assert "HW-P102" == said["code"]


def _each_has_an_executor_on_each_worker(home: Path, jobs: list[Job]) -> None:
    assert [{"executors": WORKERS}] * 2 == [job.answer() for job in jobs]
    assert [2, 2] == cores_used(home)
    _all_take_their_classes_from_the_archive(home, len(jobs))
    _both_work(jobs)


def _all_take_their_classes_from_the_archive(home: Path, jobs: int) -> None:
    archive = class_archive.existing()
    assert archive is not None, "run make setup"
    found = runtime.status(home)
    assert found is not None
    servers = [psutil.Process(each.pid) for each in found.services if each.pid is not None]
    below = [child for each in servers for child in each.children(recursive=True)]
    programs = [each for each in (*servers, *below) if each.name() == "java"]

    assert 1 + WORKERS * (1 + jobs) == len(programs)
    for program in programs:
        assert str(archive) in {file.path for file in program.memory_maps()}, program.cmdline()


def _both_work(jobs: list[Job]) -> None:
    for job in jobs:
        job.work()
    assert [{"counted": GROUPS, "checked": WORKERS}] * 2 == [job.answer() for job in jobs]


def _another_ends_with_an_error(config: JobConfig) -> None:
    third = Job(config, wait_s=2.0)
    said = third.answer()
    third.close()

    assert "HW-P102" == said["code"]
    assert "spark.cores.max" in said["hint"]


def _both_go_on_after_a_kill(home: Path, jobs: list[Job]) -> None:
    worker = service(home)
    assert worker.pid is not None  # without one, psutil takes this process
    process = psutil.Process(worker.pid)
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            each.kill()
    _both_work(jobs)  # with the executors that are left, or with those that came back
    wait_until(
        lambda: service(home).ready and service(home).restarts > worker.restarts,
        "the worker to be back",
        timeout_s=LONG_S,
    )
    wait_until(lambda: cores_used(home) == [2, 2], "executors of both jobs", timeout_s=LONG_S)
    _both_work(jobs)


def service(home: Path) -> Any:
    found = runtime.status(home)
    assert found is not None
    return found.service("spark-worker-1")


def cores_used(home: Path) -> list[int]:
    """Cores of each live worker that the master has given away."""
    port = json.loads((home / "run" / "ports.json").read_text())["spark-master-page"]
    with urlopen(f"http://127.0.0.1:{port}/json/", timeout=5) as page:
        workers = json.load(page)["workers"]
    return [worker["coresused"] for worker in workers if worker["state"] == "ALIVE"]
