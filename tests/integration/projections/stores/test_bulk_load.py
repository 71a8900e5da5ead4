"""A view's table filled straight from the source by Spark's tasks, and handed to the stream."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from cdc.position import ChangePosition, version_of
from cdc.postgres import catalog, own_schema, session, table_size
from cdc.schema_change import history
from cdc.snapshot import read_point, reads
from cdc.snapshot.progress import KeyRange, SnapshotProgress
from cdc.snapshot.read_point import ReadPoint
from cdc.table import TableName
from projections.changes.row_change import RowChange
from projections.common.task_fence import TaskFence
from projections.common.task_files import TaskFiles
from projections.definition.views import ChangeTime, Store
from projections.errors import LoadFailedError, ReplayStoppedError, UnholdableValueError
from projections.job import bulk_load, initial_load
from projections.job.bulk_load import Load
from projections.job.load_tasks import LoadRows
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import ViewPlan
from projections.stores.delta import copy_format, source_copy
from projections.stores.delta.arrow import table_schema
from projections.stores.delta.source_copy import SourceCopy
from projections.stores.delta.table_format import CONFIGURATION, LOADED, LOADED_AT, limits
from projections.stores.delta.table_sink import TableSink
from projections.verification import source_rows
from tests.fix_spark import UNCOMPILED
from tests.support.task_halts import TaskHalts
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cdc.lsn import Lsn
    from projections.job.initial_load import LoadProgress

pytestmark = [pytest.mark.integration, pytest.mark.spark]

WIDE = TableName("public", "wide")
CREATE = """
CREATE TYPE mood AS ENUM ('sad', 'ok "fine", really');
CREATE TABLE wide (
    id bigint, part text, small smallint, paid boolean, total numeric(12,2), digits numeric,
    weight double precision, light real, note text, code char(6), token uuid, doc json, extra jsonb,
    day date, at_time time, noted_at timestamp, placed_at timestamptz, lasted interval,
    blob bytea, tags text[], span int4range, feeling mood, address inet, letters varchar(20),
    PRIMARY KEY (id, part)
) PARTITION BY LIST (part);
CREATE TABLE wide_a PARTITION OF wide FOR VALUES IN ('a');
CREATE TABLE wide_rest PARTITION OF wide DEFAULT PARTITION BY HASH (id);
CREATE TABLE wide_rest_0 PARTITION OF wide_rest FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE wide_rest_1 PARTITION OF wide_rest FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO wide
SELECT g, (ARRAY['a', 'b', 'c,"'])[1 + g % 3], g % 100, g % 2 = 0, g / 100.0, g / 7.0, g / 3.0,
       g / 3.0, E'søster: \\\\ " ''\\n\\r\\n,\\t🚲' || g, 'x', gen_random_uuid(),
       '{"a": 1.0, "a": 9007199254740993}', '{"b": [1, null]}', date '1600-02-29' + (g * 100),
       time '23:59:59.5', timestamp '1969-12-31 23:59:59.000001' + g * interval '1 second',
       timestamptz '2026-01-01 00:00:00.123456+02' + g * interval '1 day', interval '1 mon -2 days',
       decode(lpad(to_hex(g), 400, '0'), 'hex'), ARRAY['x', NULL, '', 'a"b'], int4range(1, g + 1),
       'ok "fine", really', '10.0.0.1/8', repeat('z', g % 20)
  FROM generate_series(1, 3000) AS g;
INSERT INTO wide (id, part) VALUES (0, 'all NULL'), (-1, '');
INSERT INTO wide (id, part, weight, light, note, blob, letters)
VALUES (-2, 'odd', 'NaN', '-Infinity', '', '', ''),
       (-3, '\\N', '-0', 'Infinity', 'NULL', '\\x00', ' '),
       (-4, '\\.', 1e300, 1e-30, '\\.', NULL, NULL);
ANALYZE
"""


@pytest.fixture
def plan(database: str) -> ViewPlan:
    with session.connect(database) as connection:
        connection.execute(CREATE.encode())
        schema = catalog.describe(connection, [WIDE])[WIDE]
    return ViewPlan("wide", "t", "t.public.wide", schema, schema.key, frozenset({Store.TABLE}))


def placed(database: str) -> Lsn:
    """A position that has been reached."""
    with session.connect(database) as connection:
        root = read_point.oid(connection, WIDE)
        assert root is not None
        point = ReadPoint(connection, root)
        assert point.reached()
    return point.position


def stored(root: Path, plan: ViewPlan) -> dict[Any, Any]:
    sink = TableSink(root)
    return {(row["id"], row["part"]): dict(row) for row in sink.documents(plan)}


def wanted(database: str, plan: ViewPlan) -> dict[Any, Any]:
    with source_rows.snapshot(database) as connection:
        return {(row["id"], row["part"]): row for row in source_rows.documents(connection, plan)}


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a table read in several pieces."""
    monkeypatch.setattr(source_copy, "PIECE_BYTES", 400_000)


@pytest.mark.usefixtures("pieces")
def test_every_value_is_there_as_the_stream_would_have_brought_it(
    spark: SparkSession, database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    version = ChangePosition.of_read(1, placed(database)).version
    load = Load(SourceCopy(plan, version, database), tmp_path, connections=3)

    assert 3005 == bulk_load.load(spark, load)

    assert wanted(database, plan) == stored(tmp_path, plan)
    assert bulk_load.load(spark, load) is None  # there is a table: it stays as it is
    assert {".wide.lock", "wide", "wide.deleted"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.usefixtures("pieces")
def test_the_table_is_one_as_the_sinks_make_it(
    spark: SparkSession, database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    schema = table_schema(plan)
    configuration = CONFIGURATION | limits(schema)
    other = DeltaTable.create(str(tmp_path / "other"), schema, configuration=configuration)

    bulk_load.load(spark, Load(SourceCopy(plan, 7 << 56, database), tmp_path))

    made = DeltaTable(str(tmp_path / "wide"))
    properties = made.metadata().configuration
    files = pa.table(made.get_add_actions(flatten=True))
    assert other.schema() == made.schema()
    assert other.protocol() == made.protocol()
    at = int(properties[LOADED_AT])
    known = {LOADED: str(7 << 56), LOADED_AT: str(at)}
    assert properties == {**other.metadata().configuration, **known}
    with session.connect(database) as connection:
        assert 7 << 56 < at <= version_of(7, history.position(connection).value)
    assert 1 == made.version()  # all files in one commit
    assert files.num_rows > 1
    assert 3005 == pc.sum(files["num_records"]).as_py()
    assert -4 == pc.min(files["min.id"]).as_py()
    assert 3000 == pc.max(files["max.id"]).as_py()
    assert {path.name for path in (tmp_path / "wide").glob("*.parquet")} == {
        *files["path"].to_pylist()
    }
    assert 3005 == spark.read.format("parquet").load(str(tmp_path / "wide" / "*.parquet")).count()


def test_rows_of_a_piece_come_in_several_batches(
    database: str, plan: ViewPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_format, "BLOCK_BYTES", 100_000)
    source = SourceCopy(plan, 1 << 56, database)
    with source.session() as connection:
        (piece,) = source_copy.pieces_of(source.table_files(connection), 1)

        found = list(source.batches(connection, piece))

    assert 3 == len(piece)  # of each partition
    assert len(found) > 10
    assert 3005 == sum(batch.num_rows for batch in found)


def test_spark_shows_no_secret_of_the_source(
    spark: SparkSession, database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    bulk_load.load(spark, Load(SourceCopy(plan, 1 << 56, database, salt="its salt"), tmp_path))

    shown = spark._jsparkSession.sharedState().statusStore().executionsList()
    newest = shown.apply(shown.size() - 1)
    said = newest.description() + newest.details() + newest.physicalPlanDescription()
    load = Load(SourceCopy(plan, 1, database, salt="its salt"), tmp_path)
    tasks = LoadRows(load.source, "", (), TaskFiles(tmp_path))
    assert "MapInArrow" in said
    for text in (said, repr(load), repr(tasks)):
        assert "postgresql:" not in text
        assert "its salt" not in text


def test_the_stream_goes_on_from_the_position_of_the_load(
    spark: SparkSession, database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    version = ChangePosition.of_read(1, placed(database)).version
    bulk_load.load(spark, Load(SourceCopy(plan, version, database), tmp_path))
    sink = TableSink(tmp_path)
    row = dict.fromkeys(plan.schema.by_name) | {"id": 0, "part": "all NULL"}

    def change(key: int, part: str, at: int, note: str | None) -> RowChange:
        values = None if note is None else row | {"id": key, "part": part, "note": note}
        return RowChange((key, part), at, values, 1)

    older = sink.apply(plan, [change(0, "all NULL", version - 9, "older")])
    read = sink.apply(
        plan, [change(0, "all NULL", version, "read"), change(7777, "x", version, "")]
    )
    newer = sink.apply(
        plan, [change(0, "all NULL", version + 9, "newer"), change(-1, "", version + 9, None)]
    )
    swept = sink.sweep(plan, version)

    assert [(0, 0, 1), (1, 1, 0)] == [(a.upserted, a.deleted, a.stale) for a in (older, newer)]
    assert (0, 0) == (read.upserted, read.deleted)  # what the read sends is there, or went since
    found = stored(tmp_path, plan)
    assert (3004, "newer", 0) == (len(found), found[0, "all NULL"]["note"], swept)


def test_a_row_that_was_loaded_has_its_first_commit_once_the_stream_comes_to_its_insert(
    spark: SparkSession, database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    timed = replace(plan, times=(("came_at", ChangeTime.FIRST_COMMIT),))
    version = ChangePosition.of_read(1, placed(database)).version
    bulk_load.load(spark, Load(SourceCopy(timed, version, database), tmp_path))
    sink, (key, other) = TableSink(tmp_path), list(stored(tmp_path, plan))[:2]

    for each, at, begun in (key, version - 9, version - 9), (other, version + 9, 0):
        row = dict.fromkeys(plan.schema.by_name) | dict(zip(plan.keys, each, strict=True))
        at_us = 1000 if begun else 0
        sink.apply(timed, [RowChange(each, at, row, 1000, begun=begun, begun_at_us=at_us)])

    found = DeltaTable(str(tmp_path / plan.name)).to_pyarrow_table().to_pylist()
    known = {(row["id"], row["part"]): row["came_at"] for row in found if row["came_at"]}
    assert {key: datetime(1970, 1, 1, microsecond=1000, tzinfo=UTC)} == known
    assert 3005 == len(found)


UNHOLDABLE = (
    "at_time = '24:00'",
    "noted_at = 'infinity'",
    "day = '0044-03-15 BC'",
    "total = 'NaN'",
)


def test_a_value_that_no_table_holds_leaves_no_table(
    spark: SparkSession, database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    for value in UNHOLDABLE:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "UPDATE wide SET at_time = NULL, noted_at = NULL, day = NULL, total = NULL"
                " WHERE id = 5"
            )
            connection.execute(f"UPDATE wide SET {value} WHERE id = 5".encode())  # noqa: S608

        with pytest.raises(UnholdableValueError) as refused:
            bulk_load.load(spark, Load(SourceCopy(plan, 1 << 56, database), tmp_path))

        assert [".wide.lock"] == [path.name for path in tmp_path.iterdir()]
        assert "5" not in f"{refused.value.message}{refused.value.detail}"


def one_at(halts: TaskHalts) -> type[LoadRows]:
    """Tasks; the first that has written a piece halts before it notes that."""

    class Halting(LoadRows):  # pickled with the tasks, as it has no module
        def _piece(self, connection: Any, fence: TaskFence, number: int) -> Any:
            made = super()._piece(connection, fence, number)
            halts.reach("piece")
            return made

    return Halting


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the tables."""
    tables = tmp_path / "tables"
    tables.mkdir()
    return tables


@pytest.fixture
def halts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskHalts:
    """Halts the first task that has written a piece."""
    made = TaskHalts(tmp_path / "halts")
    made.want("piece")
    monkeypatch.setattr(bulk_load, "LoadRows", one_at(made))
    return made


@pytest.mark.usefixtures("pieces")
def test_what_a_killed_worker_was_at_is_copied_again(
    spark: SparkSession, database: str, plan: ViewPlan, root: Path, halts: TaskHalts
) -> None:
    before = wanted(database, plan)

    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(bulk_load.load, spark, Load(SourceCopy(plan, 1 << 56, database), root))
        worker = wait_until(lambda: halts.halted("piece"), "a piece")
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("DELETE FROM wide WHERE id > 100")  # the snapshot has these rows
        os.kill(worker, signal.SIGKILL)

        assert 3005 == load.result(60)

    assert before == stored(root, plan)
    assert {".wide.lock", "wide", "wide.deleted"} == {path.name for path in root.iterdir()}


@pytest.mark.usefixtures("pieces")
def test_a_load_without_its_exporting_session_ends(
    spark: SparkSession, database: str, plan: ViewPlan, root: Path, halts: TaskHalts
) -> None:

    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(bulk_load.load, spark, Load(SourceCopy(plan, 1 << 56, database), root))
        wait_until(lambda: halts.halted("piece"), "a piece")
        with psycopg.connect(database, autocommit=True) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND query LIKE '%pg_export_snapshot%'"
            ).fetchall()

        with pytest.raises(LoadFailedError) as failed:
            load.result(30)

    assert [(True,)] == ended
    assert "57P01" == failed.value.detail
    assert [".wide.lock"] == [path.name for path in root.iterdir()]


@pytest.mark.usefixtures("pieces")
def test_a_load_is_stopped_and_continued(
    spark: SparkSession, database: str, plan: ViewPlan, root: Path, halts: TaskHalts
) -> None:
    stop = threading.Event()
    load = Load(SourceCopy(plan, 1 << 56, database), root)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(bulk_load.load, spark, load, stop.is_set)
        wait_until(lambda: halts.halted("piece"), "a piece")
        stop.set()

        with pytest.raises(ReplayStoppedError):
            first.result(15)

    assert {".wide.loading", ".wide.lock"} == {path.name for path in root.iterdir()}
    assert list(root.glob(".wide.loading/*/load.json"))
    assert 3005 == bulk_load.load(spark, load)
    assert wanted(database, plan) == stored(root, plan)
    assert {".wide.lock", "wide", "wide.deleted"} == {path.name for path in root.iterdir()}


@pytest.mark.usefixtures("pieces")
def test_a_load_waits_for_tasks_of_a_driver_that_was_killed(
    spark: SparkSession, database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    left = TaskFiles.made(tmp_path / ".wide.loading")
    fence = TaskFence(left.folder)
    fence.open()
    load = Load(SourceCopy(plan, 1 << 56, database), tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with fence.task():
            next_one = pool.submit(bulk_load.load, spark, load)
            wait_until(lambda: _closed(fence), "the fence to be closed")
            assert not next_one.done()
            assert {".wide.loading", ".wide.lock"} == {path.name for path in tmp_path.iterdir()}

        assert 3005 == next_one.result(60)

    assert not left.folder.exists()
    with pytest.raises(ReplayStoppedError), fence.task():
        pytest.fail("it works for a driver that is gone")


def _closed(fence: TaskFence) -> bool:
    try:
        fence.check()
    except ReplayStoppedError:
        return True
    return False


KILLED = """
import os, pickle, sys
from projections.job import bulk_load
from projections.job.spark.session import start_session
config, load = pickle.load(sys.stdin.buffer)
bulk_load.make_table = lambda source, copied: os.kill(os.getpid(), 9)
bulk_load.load(start_session(config), load)
"""


@pytest.mark.usefixtures("pieces")
def test_a_killed_driver_leaves_no_table_and_the_next_load_begins_again(
    spark: SparkSession, database: str, plan: ViewPlan, tmp_path: Path, root: Path
) -> None:
    load = Load(SourceCopy(plan, 1 << 56, database), root)
    config = JobConfig.of_tables("t", tmp_path, (), driver_memory_mib=500, conf=UNCOMPILED)

    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        input=pickle.dumps((config, load)),
        check=False,
        timeout=120,
    )

    assert -9 == done.returncode
    assert {".wide.loading", ".wide.lock"} == {path.name for path in root.iterdir()}
    assert list(root.glob(".wide.loading/*/*/*.parquet"))
    assert 3005 == bulk_load.load(spark, load)
    assert {".wide.lock", "wide", "wide.deleted"} == {path.name for path in root.iterdir()}


def test_tables_that_cannot_be_large_are_not_waited_for(
    spark: SparkSession,
    database: str,
    plan: ViewPlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = JobSpec(JobConfig("t", "", database, "", tmp_path, "", "", ()), (plan,))
    monkeypatch.setattr(initial_load, "BEGIN_WAIT_S", 3_600.0)
    parts = TableName("public", "parts")
    with session.connect(database) as connection:
        own_schema.ensure(connection)
        reads.ask_initial(connection, "t", 1, [WIDE])  # nothing reads it: it never begins
        connection.execute(
            "CREATE TABLE parts (id int) PARTITION BY LIST (id);"
            "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);"
            "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2);"
            "INSERT INTO parts SELECT 1 + n % 2 FROM generate_series(1, 5000) n"
        )
        rows = table_size.rows_at_most(connection, [WIDE, parts, TableName("public", "gone")])
    assert rows[WIDE] >= 3005
    assert rows[parts] >= 5000
    assert 0 == rows[TableName("public", "gone")]
    least = rows[WIDE] + 1
    spec = replace(spec, config=replace(spec.config, load_rows_min=least))

    assert {} == initial_load.load_new(spark, spec)


def test_a_new_view_of_a_large_table_is_loaded_once_a_read_of_it_has_begun(
    spark: SparkSession,
    database: str,
    plan: ViewPlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = JobSpec(JobConfig("t", "", database, "", tmp_path, "", "", ()), (plan,))
    with session.connect(database) as connection:
        own_schema.ensure(connection)
        reads.ask_initial(connection, "t", 1, [WIDE])
        (read,) = reads.open_reads(connection, "t", 1)
        monkeypatch.setattr(initial_load, "BEGIN_WAIT_S", 0.0)
        assert {} == initial_load.load_new(spark, spec)  # there is no snapshot
        progress = SnapshotProgress("", (), (KeyRange(),))
        assert reads.begin(connection, read, placed(database), progress, 3005)
        assert {} == initial_load.load_new(spark, spec)  # the stream makes short work of it
    spec = replace(spec, config=replace(spec.config, load_rows_min=3000))

    reported: list[LoadProgress | None] = []
    loaded = initial_load.load_new(spark, spec, on_progress=reported.append)
    again = initial_load.load_new(spark, spec)

    assert ({"wide": 3005}, {}) == (loaded, again)
    *running, ended = reported
    assert ended is None
    assert {("wide", 3005)} == {(each.view, each.rows_expected) for each in running if each}
    with pytest.raises(ReplayStoppedError):
        initial_load.load_new(
            spark, replace(spec, plans=(replace(plan, name="other"),)), lambda: True
        )
    assert wanted(database, plan) == stored(tmp_path / "tables", plan)
