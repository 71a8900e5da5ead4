"""A command has the job's Spark fill a table; either may be killed on the way."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from cdc.table import Column, ColumnKind, TableSchema
from eventstore.serialization.registry import EventTypes
from projections.archive import replay
from projections.archive.rebuilding import task_ranges
from projections.archive.rebuilding.engine import TaskEngine
from projections.archive.task import ReplayOptions, ReplayState, ReplayTarget
from projections.common.file_lock import WriterLock
from projections.definition.event_rows import EventForm
from projections.definition.views import ChangeTime, Store
from projections.errors import BulkLostError, ReplayStoppedError
from projections.planning.job_config import JobConfig
from projections.planning.view_plan import EventsPlan, HistoryPlan
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.table_sink import TableSink
from projections.stores.factory import open_sink
from projections.versions import fill_way, job_engine
from projections.versions.bulk_requests import (
    ATTEMPTS_MAX,
    FORM,
    BulkFill,
    BulkProgress,
    BulkRequests,
    BulkServer,
)
from projections.versions.fill import FillOptions
from projections.versions.job_engine import JobEngine
from tests.fix_archive import archived
from tests.fix_log import PLAN, TOPIC, orders
from tests.support.event_logs import PLAN as EVENTS
from tests.support.event_logs import placed
from tests.support.keyless_logs import PLAN as KEYLESS
from tests.support.rebuild_server import server
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

VIEW = replace(PLAN, to=frozenset({Store.TABLE}))
HISTORY = replace(VIEW, history=HistoryPlan(("note",)))
RECORDS = 40


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PART_RECORDS", 3)
    monkeypatch.setattr(replay, "BULK_RECORDS", 2)
    monkeypatch.setattr(task_ranges, "TASK_ROWS", 4)


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    made = JobConfig.of_tables("shop", tmp_path / "home", (), rebuild_rows_min=RECORDS)
    archived(made.archive, TOPIC, orders(RECORDS))
    return made


def filled(config: JobConfig, **options: Any) -> None:
    """What a command does once it knows that the job fills the version."""
    filling = FillOptions()
    with job_engine.fenced(config, VIEW, filling.stopped):
        bulk = JobEngine(config, VIEW)
        target = ReplayTarget((VIEW,), lambda: TableSink(config.addresses.tables), bulk=bulk)
        replay.replay(config.archive, [target], ReplayOptions(**options))


def rows(tables: Path) -> list[list[dict[str, Any]]]:
    return [
        sorted(DeltaTable(str(tables / name)).to_pyarrow_table().to_pylist(), key=lambda r: r["id"])
        for name in (VIEW.name, f"{VIEW.name}.deleted")
    ]


def expected(config: JobConfig) -> list[list[dict[str, Any]]]:
    """What a replay comes to that goes record by record."""
    other = config.home / "other"
    replay.replay(config.archive, [ReplayTarget((VIEW,), lambda: TableSink(other))])
    return rows(other)


def left_behind(config: JobConfig) -> list[str]:
    folder = config.checkpoint(Store.TABLE).parent / ".rebuilds"
    there = [path.name for path in folder.iterdir() if path.is_dir()]
    return there + [path.name for path in config.addresses.tables.glob(".*.fill*")]


def commits_in_bulk(config: JobConfig) -> int:
    log = config.addresses.tables / VIEW.name / "_delta_log"
    return sum("headwater.replay." in path.read_text() for path in log.glob("*.json"))


def test_the_job_fills_a_table_as_the_command_would(spark: SparkSession, config: JobConfig) -> None:
    with server(spark, config):
        assert fill_way.way_of(config, VIEW, RECORDS).by_job
        filled(config)

    assert expected(config) == rows(config.addresses.tables)
    assert commits_in_bulk(config) > 1
    assert [] == left_behind(config)


def test_the_job_fills_a_history_as_the_command_would(
    spark: SparkSession, config: JobConfig
) -> None:
    found = []
    for by_job, root in ((True, config.addresses.tables), (False, config.home / "other")):
        filling = FillOptions()
        with server(spark, config), job_engine.fenced(config, HISTORY, filling.stopped):
            assert fill_way.way_of(config, HISTORY, RECORDS).by_job
            bulk = JobEngine(config, HISTORY) if by_job else None
            target = ReplayTarget((HISTORY,), partial(HistorySink, root), bulk=bulk)
            replay.replay(config.archive, [target])
        tables = (DeltaTable(str(root / each)) for each in ("things", "things.changes"))
        found.append([sorted(map(repr, _rows_of(table))) for table in tables])

    assert found[0] == found[1]
    assert commits_in_bulk(config) > 0
    assert [] == left_behind(config)


def _rows_of(table: DeltaTable) -> list[dict[str, Any]]:
    rows = table.to_pyarrow_table()
    return rows.select([name for name in rows.column_names if name != "_commit"]).to_pylist()


def test_the_job_fills_a_cache_as_the_command_would(
    spark: SparkSession, config: JobConfig, cache_url: str
) -> None:
    config = replace(config, cache_url=cache_url)
    place = config.addresses
    found = []
    for by_job in (True, False):
        plan = replace(PLAN, name=f"t{uuid4().hex[:12]}", to=frozenset({Store.CACHE}))
        filling = FillOptions()
        with server(spark, config), job_engine.fenced(config, plan, filling.stopped):
            bulk = JobEngine(config, plan) if by_job else None
            target = ReplayTarget((plan,), lambda: open_sink(Store.CACHE, place), bulk=bulk)
            replay.replay(config.archive, [target])
        opened: Any = open_sink(Store.CACHE, place)
        with closing(opened) as sink:
            found.append(sorted(map(dict, sink.documents(plan)), key=lambda row: row["id"]))
            sink.drop(plan)

    assert found[0] == found[1]
    assert len(found[0]) == 7
    assert [] == left_behind(config)


def test_the_job_fills_a_view_of_events_as_the_command_would(
    spark: SparkSession, config: JobConfig
) -> None:
    archive, found = placed(config.home / "of_events", 30), []
    with server(spark, config):
        for by_job, root in ((True, config.addresses.tables), (False, config.home / "other")):
            filling = FillOptions()
            with job_engine.fenced(config, EVENTS, filling.stopped):
                assert fill_way.way_of(config, EVENTS, RECORDS).by_job
                bulk = JobEngine(config, EVENTS) if by_job else None
                replay.replay(
                    archive, [ReplayTarget((EVENTS,), partial(TableSink, root), bulk=bulk)]
                )
            rows = DeltaTable(str(root / EVENTS.name)).to_pyarrow_table().to_pylist()
            found.append(sorted(rows, key=lambda row: row["global_position"]))

    assert found[0] == found[1]
    assert len(found[0]) == 28
    assert [] == left_behind(config)


def test_a_view_whose_classes_no_other_process_can_import_is_the_commands(
    config: JobConfig,
) -> None:
    class Local:
        pass

    types = EventTypes()
    types.event("order.placed")(dataclass(frozen=True)(Local))
    events = EventsPlan(EventForm(types, ["order.placed"]), {})
    filling = FillOptions()
    with job_engine.fenced(config, EVENTS, filling.stopped), pytest.raises(BulkLostError) as lost:
        BulkRequests(config).ask(EVENTS.name, BulkFill(None, replace(EVENTS, events=events), None))

    assert "cannot be imported" in (lost.value.detail or "")


def test_who_fills_a_version_is_told_with_the_reason(config: JobConfig) -> None:
    assert fill_way.way_of(config, VIEW, RECORDS - 1) == (False, "fewer changes than 40")
    assert fill_way.way_of(config, None, RECORDS) == (False, "it does not fit its table")
    number = Column("id", ColumnKind.NUMERIC, "numeric", nullable=False)
    table = VIEW.schema
    loose = TableSchema(table.table, (number, *table.columns[1:]), table.key)
    of_numbers = replace(VIEW, schema=loose)
    assert "several ways" in fill_way.way_of(config, of_numbers, RECORDS).why
    assert "does not run" in fill_way.way_of(config, VIEW, RECORDS).why
    with BulkRequests(config).serving():
        BulkRequests(config).serve(BulkServer(1, FORM))
        assert "one task" in fill_way.way_of(config, VIEW, RECORDS).why
        BulkRequests(config).serve(BulkServer(2, FORM))
        assert fill_way.way_of(config, VIEW, RECORDS).by_job
        for plan in (
            replace(VIEW, to=frozenset(Store)),
            replace(VIEW, former=("shop.public.old",)),
            replace(VIEW, times=(("came_at", ChangeTime.FIRST_COMMIT),)),
            KEYLESS,
            replace(EVENTS, to=frozenset({Store.SEARCH})),
            replace(EVENTS, times=(("added_at", ChangeTime.COMMIT),)),
        ):
            assert fill_way.way_of(config, plan, RECORDS).by_job
        BulkRequests(config).serve(BulkServer(2))
        assert "another release" in fill_way.way_of(config, VIEW, RECORDS).why


def test_a_job_that_ends_amid_it_is_followed_by_another(
    spark: SparkSession, config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_commit, go_on = threading.Event(), threading.Event()
    commit = TaskEngine._commit

    def committed(own: TaskEngine, *what: Any) -> None:
        at_commit.set()
        assert go_on.wait(60)
        commit(own, *what)

    monkeypatch.setattr(TaskEngine, "_commit", committed)
    failed: list[BaseException] = []

    def fill() -> None:
        try:
            filled(config)
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            failed.append(error)

    command = threading.Thread(target=fill)
    with server(spark, config) as first:
        command.start()
        assert at_commit.wait(60)
        first.stop()
        go_on.set()
    with server(spark, config):
        command.join(120)

    assert [] == failed
    assert expected(config) == rows(config.addresses.tables)
    assert [] == left_behind(config)


def test_withdrawn_work_is_not_written(
    spark: SparkSession, config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is killed while its records are decoded; another one goes on."""
    requests, noted = BulkRequests(config), list[ReplayState]()
    decode = TaskEngine._results
    killed = threading.Event()

    def decoded(own: TaskEngine, *what: Any) -> Any:
        made = decode(own, *what)
        killed.set()
        wait_until(lambda: not requests.asked(VIEW.name), timeout_s=60)
        return made

    def asked(own: JobEngine, work: Any, *_: Any) -> Any:
        id_ = requests.ask(VIEW.name, work)
        if isinstance(work, BulkFill):
            assert killed.wait(60)
            raise KilledError
        wait_until(lambda: requests.answered(VIEW.name, id_) is not None, timeout_s=60)
        return requests.answered(VIEW.name, id_)

    with server(spark, config):
        with monkeypatch.context() as patch:
            patch.setattr(TaskEngine, "_results", decoded)
            patch.setattr(JobEngine, "_answer", asked)
            # a kill withdraws nothing: the lock goes, and the request stays
            patch.setattr(BulkRequests, "withdraw", lambda *_: None)
            with pytest.raises(KilledError):
                filled(config, note=noted.append)
        wait_until(lambda: [] == left_behind(config), timeout_s=60)
        assert 0 == commits_in_bulk(config)
        filled(config, resume=noted[-1])

    assert expected(config) == rows(config.addresses.tables)


class KilledError(BaseException):
    """Stands for a kill."""


def test_a_part_that_ends_the_job_is_given_back(spark: SparkSession, config: JobConfig) -> None:
    requests = BulkRequests(config)
    ask = BulkRequests.ask

    def asked_before(own: BulkRequests, place: str, work: Any) -> str:
        id_ = ask(own, place, work)
        own.note(place, BulkProgress(id_, ATTEMPTS_MAX))
        return id_

    def fill() -> None:
        with pytest.raises(BulkLostError):
            filled(config)
        ended.set()

    ended = threading.Event()
    under_way = threading.Thread(target=fill)
    with pytest.MonkeyPatch.context() as patch, requests.serving():
        requests.serve(BulkServer(4, FORM))
        patch.setattr(BulkRequests, "ask", asked_before)
        under_way.start()
        wait_until(lambda: [] != requests.open(), timeout_s=30)
    with server(spark, config):
        assert ended.wait(60)
    under_way.join(60)
    assert [] == left_behind(config)


def test_a_job_that_stays_away_and_a_command_that_is_stopped(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_engine, "GONE_S", 0.5)
    with pytest.raises(BulkLostError) as lost:
        filled(config)
    assert ("HW-P153", "for 0 s") == (lost.value.code, lost.value.detail)
    assert [] == left_behind(config)

    stop = threading.Event()
    with BulkRequests(config).serving():
        BulkRequests(config).serve(BulkServer(4, FORM))
        threading.Timer(0.5, stop.set).start()
        with pytest.raises(ReplayStoppedError):
            filled(config, stopped=stop)
    assert [] == left_behind(config)


def test_a_fence_waits_for_what_is_being_written(config: JobConfig) -> None:
    lock = WriterLock(config.addresses.tables / f".{VIEW.name}.lock", wait=True)
    lock.acquire()
    began = time.monotonic()
    threading.Timer(0.5, lock.release).start()
    job_engine.fence(config, VIEW, threading.Event())
    assert time.monotonic() - began > 0.4

    stopped = threading.Event()
    stopped.set()
    with pytest.raises(ReplayStoppedError):
        job_engine.fence(config, VIEW, stopped)
