"""A Spark cluster: by settings alone, and what a job asks of it."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from headwater.cli import main
from headwater.platform.specs import job_spec, runtime_spec
from headwater.project.project import Project, open_project
from headwater.project.settings.errors import ConflictingSettingsError
from headwater.runtime import Endpoints
from headwater.runtime.home import Home
from headwater.runtime.plan import Plan
from headwater.runtime.preflight import choose_ports
from headwater.runtime.resolve import resolve_endpoints
from projections.common.shared_folder import SharedFolder
from projections.errors import (
    BatchSupersededError,
    FolderNotSharedError,
    MasterUnreachableError,
    NoExecutorsError,
)
from projections.job.spark import cluster
from projections.job.spark.session import settings as spark_settings
from projections.publishing.batch_fence import BatchFence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projections.planning.job_spec import JobSpec

PAGE = Path(__file__).resolve().parents[4] / "docs" / "scale_out.md"
SHOWN = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
DSN = "postgresql://u@db/shop"


@pytest.fixture(autouse=True)
def _path_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def project(
    folder: Path, text: str, profile: str | None = None, sources: Sequence[str] = ("shop",)
) -> Project:
    declared = "".join(f'source("{name}", ["a"])\n' for name in sources)
    (folder / "views.py").write_text(f"from headwater import source\n{declared}")
    settings = folder / "headwater.toml"
    settings.write_text(text)
    return open_project(settings, home=folder / ".headwater", profile=profile)


def database(source: str) -> str:
    """Settings of a source."""
    return f'[source.{source}]\ndsn = "postgresql://u@db/{source}"\n'


def job(opened: Project, endpoints: Endpoints | None = None) -> JobSpec:
    return job_spec(opened, (), DSN, endpoints or Endpoints())


def test_workers_are_started_beside_the_job_and_it_runs_on_them(tmp_path: Path) -> None:
    text = "[profile.wide.spark]\nworkers = 3\nworker_cores = 4\nworker_memory_mib = 700\n"
    source = f'[source.shop]\ndsn = "{DSN}"\n'
    opened = project(tmp_path, text + source, profile="wide")

    spec = runtime_spec(opened, tmp_path / "headwater.toml", lifeline=False)

    assert spec.spark is not None
    names = ("spark-master", "spark-worker-1", "spark-worker-2", "spark-worker-3")
    assert names == spec.spark.names
    assert set(names) < spec.fingerprints().keys()
    job_command, watch = spec.commands
    assert set(names[1:]) < set(job_command.depends_on)
    assert not set(names) & set(watch.depends_on)
    # the job opens the settings again, and must see the same
    assert job_command.argv[-2:] == watch.argv[-2:] == ("--profile", "wide")
    opened.home.create()
    ports = choose_ports(Home(spec.home), spec)
    assert {*names, "spark-master-page"} < ports.keys()
    endpoints = resolve_endpoints(spec)
    assert f"spark://127.0.0.1:{ports['spark-master']}" == endpoints.spark_url
    ours = job(opened, endpoints)
    assert endpoints.spark_url == ours.config.master
    assert not ours.config.local
    said = spark_settings(ours.config)
    assert "700m" == said["spark.executor.memory"]
    assert "127.0.0.1" == said["spark.driver.host"]
    assert ("4", "12") == (said["spark.executor.cores"], said["spark.cores.max"])
    assert (3, 4, 700) == (spec.spark.workers, spec.spark.cores, spec.spark.memory_mb)


@pytest.mark.parametrize("sources", [1, 2, 5])
@pytest.mark.parametrize(("workers", "cores"), [(1, 1), (2, 1), (3, 4)])
def test_the_workers_have_room_for_the_executors_of_all_jobs(
    tmp_path: Path, workers: int, cores: int, sources: int
) -> None:
    names = [f"s{number}" for number in range(sources)]
    settings = f"[spark]\nworkers = {workers}\nworker_cores = {cores}\n"
    opened = project(tmp_path, settings + "".join(map(database, names)), sources=names)
    spec = runtime_spec(opened, tmp_path / "headwater.toml", lifeline=False).spark
    assert spec is not None

    jobs = [spark_settings(job(part).config) for part in opened.parts]

    executor_cores = {int(each["spark.executor.cores"]) for each in jobs}
    executor_mib = sum(int(each["spark.executor.memory"].removesuffix("m")) for each in jobs)
    assert sources == len(jobs)
    assert {cores} == executor_cores
    # one executor of each job on each worker, and no second one where a worker is lost
    assert (sources * cores, executor_mib) == (spec.cores, spec.memory_mb)
    assert {str(workers * cores)} == {each["spark.cores.max"] for each in jobs}


def test_a_plan_with_workers_travels_whole_and_says_how_each_is_started(tmp_path: Path) -> None:
    opened = project(tmp_path, "[spark]\nworkers = 2\n")
    spec = runtime_spec(opened, tmp_path / "headwater.toml", lifeline=False)
    opened.home.create()
    jars = dict.fromkeys(("kafka", "opensearch", "spark"), (Path("/jars/*"),))
    archive = Path("/spark.jsa")
    plan = Plan(spec, choose_ports(Home(spec.home), spec), Path("/java"), jars, archive)

    back = Plan.from_json(plan.to_json())

    assert spec.spark == back.spec.spark
    master, *workers = back.services()[-3:]
    assert ["spark-worker-1", "spark-worker-2"] == [worker.name for worker in workers]
    assert all(
        f"-XX:SharedArchiveFile={archive}" in service.launch().argv
        for service in (master, *workers)
    )
    for worker in workers:
        launch = worker.launch()
        assert master.address == launch.argv[-1]
        assert ("--host", "127.0.0.1") == launch.argv[launch.argv.index("--host") :][:2]
        assert "127.0.0.1" == launch.env["SPARK_LOCAL_IP"]
        assert not worker.answers(0.2)


def test_a_cluster_of_ours_and_a_master_elsewhere_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConflictingSettingsError):
        project(tmp_path, '[spark]\nmaster = "spark://elsewhere:7077"\nworkers = 2\n')


def test_the_page_shows_settings_for_each_kind_of_cluster() -> None:
    masters = {found for text in SHOWN for found in re.findall(r'master = "(\w+)', text)}

    assert {"spark", "yarn", "k8s"} == masters


@pytest.mark.parametrize("text", SHOWN, ids=lambda text: text.split("\n", 1)[0].strip("# "))
def test_settings_that_the_page_shows_are_taken_and_reach_spark(tmp_path: Path, text: str) -> None:
    opened = project(tmp_path, text)

    found = job(opened)

    said, wanted = spark_settings(found.config), opened.settings.spark
    assert wanted.conf.items() <= said.items()
    assert (wanted.master, wanted.tasks) == (found.config.master, found.config.tasks)
    assert str(wanted.driver_memory_mib) + "m" == said["spark.driver.memory"]
    assert said["spark.jars"].count(".jar") > 3


def test_what_runs_on_this_machine_alone_binds_to_loopback(tmp_path: Path) -> None:
    near = job(project(tmp_path, '[spark]\nmaster = "spark://127.0.0.1:7077"\n'))
    far = job(project(tmp_path, '[spark]\nmaster = "spark://127.0.0.1:7077,other:7077"\n'))

    assert "127.0.0.1" == spark_settings(near.config)["spark.driver.bindAddress"]
    assert "spark.driver.bindAddress" not in spark_settings(far.config)


def test_a_master_that_does_not_listen_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "MASTER_WAIT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cluster.await_master(f"spark://127.0.0.1:9,127.0.0.1:{port}")

    with pytest.raises(MasterUnreachableError, match="no Spark master listens"):
        cluster.await_master(f"spark://127.0.0.1:{port}")
    with pytest.raises(MasterUnreachableError, match="no address"):
        cluster.await_master("spark://host:port")


def test_a_job_whose_master_is_not_there_ends_and_its_status_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "MASTER_WAIT_S", 0.3)
    opened = project(tmp_path, '[spark]\nmaster = "spark://127.0.0.1:9"\n')

    code = main(["run", "--config", str(tmp_path / "headwater.toml")])

    assert 1 == code
    assert "HW-P101" in capsys.readouterr().err
    said = json.loads((opened.home.run / "job.json").read_bytes())
    assert ("failed", "HW-P101") == (said["state"], said["error"]["code"])
    assert "127.0.0.1:9" in said["error"]["detail"]


def test_a_job_that_lost_its_executors_waits_and_then_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = iter([1, 0, 0])
    monkeypatch.setattr(cluster, "executors", lambda _session: next(found))
    watch = cluster.ExecutorWatch(SimpleNamespace())

    watch.check()
    watch.check()

    monkeypatch.setattr(cluster, "EXECUTORS_WAIT_S", -1.0)
    with pytest.raises(NoExecutorsError):
        watch.check()


def test_a_folder_that_is_not_the_drivers_is_refused(tmp_path: Path) -> None:
    folder = SharedFolder.marked(tmp_path / "tables", "shop")
    other = SharedFolder.marked(tmp_path / "other", "shop")

    folder.take(folder.reply())
    folder.check()

    for wrong in (
        SharedFolder(tmp_path / "nowhere", "shop", folder.mark),
        SharedFolder(tmp_path / "other", "shop", folder.mark),
        SharedFolder(tmp_path / "tables", "billing", folder.mark),
    ):
        with pytest.raises(FolderNotSharedError):
            wrong.reply()
    with pytest.raises(FolderNotSharedError):
        folder.take(other.reply())


def test_drivers_of_several_sources_mark_one_folder_and_each_sees_its_own_mark(
    tmp_path: Path,
) -> None:
    former = SharedFolder.marked(tmp_path, "shop")
    shop, billing = (SharedFolder.marked(tmp_path, name) for name in ("shop", "billing"))

    for folder in (shop, billing):
        folder.take(folder.reply())
        folder.check()

    with pytest.raises(FolderNotSharedError, match="executor"):
        former.check()


def test_a_task_of_an_earlier_batch_is_refused_and_one_of_the_same_waits(tmp_path: Path) -> None:
    turn = BatchFence(tmp_path / "shop")
    first = turn.begin()
    inside, entered, left = threading.Event(), threading.Event(), threading.Event()

    def again() -> None:
        inside.wait(10)
        with BatchFence(tmp_path / "shop").taken(first):
            assert left.is_set()
            entered.set()

    thread = threading.Thread(target=again)
    thread.start()
    with turn.taken(first):
        inside.set()
        assert not entered.wait(0.2)
        left.set()
    thread.join(10)
    second = turn.begin()

    assert entered.is_set()
    with turn.taken(second):
        pass
    with pytest.raises(BatchSupersededError), turn.taken(first):
        pass
    assert second < BatchFence(tmp_path / "shop").begin()
