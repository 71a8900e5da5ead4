"""The driver dies, the views do not: it comes back and they equal their source."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest
from deltalake import DeltaTable

from cdc.broker.client.admin import consumer
from cdc.broker.topics.offsets import partitions
from projections.archive.table import record_value
from projections.common.driver_lock import holders
from tests.fix_spark import ViewJob
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from projections.planning.job_config import JobConfig
    from tests.fix_capture import Captured

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TABLES = """
CREATE TABLE counters (id int PRIMARY KEY, counted int NOT NULL, note text);
CREATE TABLE events (id bigint, what text);
INSERT INTO counters SELECT n, 0, 'start' FROM generate_series(1, 300) n
"""


@pytest.fixture
def job(
    capture: Callable[..., Captured], view_job: Callable[..., ViewJob], database: str
) -> ViewJob:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    return view_job(capture("public.counters", "public.events"), own_jvm=True)


def test_a_driver_killed_while_it_writes_loses_and_doubles_nothing(job: ViewJob) -> None:
    enough = threading.Event()
    writer = threading.Thread(target=_write, args=(job.spec.config.source_dsn, enough))
    writer.start()
    left: set[Path] = set()
    try:
        for kill_after in (1, 3):
            job.start()
            job.wait(_batches(kill_after))
            left.add(_scratch(job))
            job.kill()
            assert job.orphans() == []
        # every record is archived once all the same
        shutil.rmtree(job.spec.config.checkpoint("archive"))
        job.start()
        job.wait(_batches(1))
    finally:
        enough.set()
        writer.join()

    assert job.catch_up() == []
    sent = _sent(job.spec.config)
    wait_until(
        lambda: sent.keys() <= {place for place, _ in _archived(job.spec.config)}, timeout_s=LONG_S
    )
    assert _scratch(job).exists()
    assert job.stop() == 0
    assert 2 == len(left)
    assert [] == [path for path in left if path.exists()]
    archived = _archived(job.spec.config)
    assert len(archived) == len(dict(archived)), "a record is there twice"
    assert sent == {place: value for place, value in archived if place in sent}


def _scratch(job: ViewJob) -> Path:
    """Where the JVM of a job that runs has what it shuffles: rows, and nobody else's business."""
    assert job.process is not None
    jvm = psutil.Process(job.process.pid).children()[0]
    (said,) = (word for word in jvm.cmdline() if word.startswith("-Djava.io.tmpdir="))
    path = Path(said.partition("=")[2])
    assert any(path.glob("blockmgr-*"))
    return path


def test_a_driver_that_is_stopped_gives_way_to_another_only_when_nothing_of_it_can_write(
    job: ViewJob,
) -> None:
    other, log = ViewJob(job.spec), job.spec.config.home / "job.log"
    job.start()
    job.wait(_batches(1))
    assert job.process is not None
    driver = psutil.Process(job.process.pid)
    driver.suspend()
    jvm, *workers = [child for child in driver.children(recursive=True) if _stopped(child)]

    other.start()
    assert other.process is not None
    assert 1 == other.process.wait(180)
    assert "another driver maintains these views" in log.read_text("utf-8")

    job.kill()
    other.start()
    wait_until(lambda: other.process.pid in holders(job.spec.config.home), timeout_s=LONG_S)
    assert other.process.poll() is None, "it waits for what the first one left"
    jvm.kill()
    for worker in workers:  # one was stopped amid a write, perhaps
        if worker.pid in holders(job.spec.config.home / ".writer" / "tenure"):
            worker.kill()
    _write_some(job.spec.config.source_dsn)
    assert other.catch_up() == []

    # now only the old workers can write
    mine = psutil.Process(other.process.pid)
    for process in (everything := [mine, *mine.children(recursive=True)]):
        process.suspend()
    before = _files(job.spec.config.home)
    for worker in psutil.wait_procs(workers, 0)[1]:
        worker.resume()
    assert [] == psutil.wait_procs(workers, 30)[1]
    assert before == _files(job.spec.config.home)
    for process in everything:
        process.resume()
    _write_some(job.spec.config.source_dsn)
    assert other.catch_up() == []

    (job.spec.config.home / ".writer" / "tenure").unlink()
    assert 1 == other.process.wait(180)
    assert "HW-P017" == other.status()["error"]["code"]


def test_a_store_that_is_gone_holds_back_only_itself(
    capture: Callable[..., Captured], view_job: Callable[..., ViewJob], database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    captured = capture("public.counters")
    job = view_job(captured, search_url="http://127.0.0.1:9", own_jvm=True)

    job.start()
    job.wait(lambda said: (said["queries"].get("search") or {}).get("error") is not None)
    job.wait(lambda said: said["queries"]["cache"]["records"] >= 300)
    job.wait(lambda said: said["queries"]["table"]["records"] >= 300)

    assert job.status()["queries"]["search"]["error"]["code"] == "HW-P011"
    assert job.stop() == 0


@pytest.mark.soak(minutes=2)
def test_a_driver_killed_while_a_table_changes_follows_it_afterwards(job: ViewJob) -> None:
    job.start()
    job.wait(_batches(1))
    with psycopg.connect(job.spec.config.source_dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE counters ADD COLUMN colour text")
        connection.execute("UPDATE counters SET colour = 'red' WHERE id % 2 = 1")
    job.kill()
    job.start()

    assert job.catch_up() == []
    (counters, _) = job.bound().plans
    assert [column.name for column in counters.schema.columns][-1] == "colour"
    assert job.stop() == 0


def _sent(config: JobConfig) -> dict[tuple[str, int, int], bytes | None]:
    """Every record that the topics of a source have."""
    found = {}
    with consumer(config.bootstrap) as client:
        names = [name for name in client.topics() if name.startswith(f"{config.source}.")]
        places = partitions(client, names)
        ends = client.end_offsets(places)
        client.assign(places)
        client.seek_to_beginning(*places)
        while any(client.position(place) < end for place, end in ends.items()):
            for place, records in client.poll(timeout_ms=500).items():
                for record in records:
                    found[place.topic, place.partition, record.offset] = record.value
    return found


def _archived(config: JobConfig) -> list[tuple[tuple[str, int, int], bytes | None]]:
    rows = DeltaTable(config.archive).to_pyarrow_table().to_pylist()
    return [((row["topic"], row["partition"], row["offset"]), record_value(row)) for row in rows]


def _files(home: Path) -> dict[Path, tuple[int, int]]:
    files = (path for name in ("tables", "checkpoints", "archive") for path in _below(home / name))
    return {path: (stat.st_mtime_ns, stat.st_size) for path in files if (stat := path.stat())}


def _below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _write_some(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE counters SET counted = counted + 1 WHERE id % 3 = 0")


def _stopped(process: psutil.Process) -> bool:
    """Stops a process; false of one that has gone, as the short ones have that a JVM starts."""
    try:
        process.suspend()
    except psutil.NoSuchProcess:
        return False
    return True


def _batches(count: int) -> Callable[[dict], bool]:
    def reached(said: dict) -> bool:
        queries = said["queries"]
        stores = [queries[name] for name in ("cache", "search", "table") if name in queries]
        return len(stores) == 3 and all(query["batches"] >= count for query in stores)

    return reached


def _write(dsn: str, enough: threading.Event) -> None:
    number = 0
    with psycopg.connect(dsn) as connection:
        while not enough.wait(0.05):
            number += 1
            key = number % 300 + 1
            if number % 11 == 0:
                connection.execute("DELETE FROM counters WHERE id = %s", (key,))
            else:
                connection.execute(
                    "INSERT INTO counters VALUES (%s, 1, 'new') ON CONFLICT (id)"
                    " DO UPDATE SET counted = counters.counted + 1",
                    (key,),
                )
            connection.execute("INSERT INTO events VALUES (%s, 'seen')", (number,))
            if number % 17 == 0:
                connection.rollback()
            else:
                connection.commit()
