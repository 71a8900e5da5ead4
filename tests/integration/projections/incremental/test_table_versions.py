"""Tables read from their files give what Delta's own reader gives, at every version."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from projections.definition.columns import DELETED_FIELD
from projections.definition.views import DerivedView
from projections.incremental.spark import maintainer, table_reader
from projections.incremental.spark.java_classes import java_class, scala_object
from projections.incremental.spark.maintainer import DerivedMaintainer
from projections.incremental.spark.table_reader import TableVersions
from projections.job.spark.session import session_of_batches
from projections.publishing.published_content import PublishedVersion, TableVersion
from projections.publishing.stable_table import StableTable
from projections.stores.delta.derived_table import DerivedTable
from projections.stores.delta.table_format import COMMITS_PER_COMPACTION, FEED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
LINES = pa.list_(pa.struct([("sku", pa.string()), ("price", pa.decimal128(12, 2))]))
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("total", pa.decimal128(38, 4)),
        ("winRatio", pa.float64()),
        ("born", pa.date32()),
        ("seen", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ('raw."bytes"', pa.binary()),
        ("lines", LINES),
        ("_version", pa.int64()),
    ]
)


def row(chance: Random, number: int) -> dict[str, Any]:
    moment = dt.datetime(1890, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=chance.random() * 5e9)
    whole = {
        "name": chance.choice(["", "a", "ü\n", "x" * 50]),
        "total": Decimal(chance.randint(-(10**9), 10**30)) / 10000,
        "winRatio": chance.choice([0.5, float("inf"), -1e300]),
        "born": moment.date(),
        "seen": moment,
        "local": moment.replace(tzinfo=None),
        'raw."bytes"': chance.randbytes(3),
        "lines": [{"sku": "s", "price": Decimal("1.25")}] * chance.randint(0, 2),
    }
    some = {name: value for name, value in whole.items() if chance.random() < 0.8}
    return {"id": number, "_version": 1, **some}


class Table:
    """A view's table that is changed as the job changes it."""

    def __init__(self, folder: Path) -> None:
        self.path, self.chance = str(folder / "things"), Random(5)  # noqa: S311
        DeltaTable.create(self.path, SCHEMA, configuration=dict(FEED))

    @property
    def version(self) -> int:
        return DeltaTable(self.path).version()

    def append(self, first: int, count: int) -> None:
        rows = [row(self.chance, number) for number in range(first, first + count)]
        write_deltalake(self.path, pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")

    def merge(self) -> None:
        numbers = self.chance.sample(range(20), 6)
        rows = pa.Table.from_pylist([row(self.chance, n) for n in numbers], schema=SCHEMA)
        gone = rows.append_column("gone", pa.array([n % 3 == 0 for n in numbers]))
        (
            DeltaTable(self.path)
            .merge(gone, "t.id = s.id", source_alias="s", target_alias="t", streamed_exec=False)
            .when_matched_delete("s.gone")
            .when_matched_update_all("NOT s.gone", except_cols=["gone"])
            .when_not_matched_insert_all("NOT s.gone", except_cols=["gone"])
            .execute()
        )


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.toArrow().to_pylist()))


def has_method(found: Any, name: str) -> bool:
    return any(method.getName() == name for method in found.getClass().getMethods())


def read_from(frame: DataFrame) -> str:
    """What the rows are read from: files, or Delta's log, or nothing but the driver."""
    leaf = frame._jdf.queryExecution().analyzed().collectLeaves().apply(0)
    if leaf.getClass().getSimpleName() == "LocalRelation":
        return "driver"
    relation = leaf.relation()
    if not has_method(relation, "location"):
        return "feed"
    index = relation.location().getClass().getSimpleName()
    return "files" if index == "InMemoryFileIndex" else "delta"


def test_files_and_few_changes_are_read_as_delta_reads_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(tmp_path)
    table.append(0, 12)
    for _ in range(4):
        table.merge()
    DeltaTable(table.path).optimize.compact()
    table.merge()
    ours, theirs = TableVersions(spark, tmp_path), TableVersions(spark, tmp_path, files_max=0)

    for version in range(table.version + 1):
        mine, delta = ours.rows("things", version), theirs.rows("things", version)
        assert mine.schema.simpleString() == delta.schema.simpleString()
        assert rows(mine) == rows(delta)
        assert "_version" not in mine.columns
        assert ours.rows("things", version) is mine
    assert len(rows(ours.rows("things", table.version))) > 5
    assert read_from(ours.rows("things", table.version)) == "files"

    for after, through in ((0, table.version), (1, 3), (4, 6), (5, 6)):
        mine = ours.changes("things", after, through)
        delta = theirs.changes("things", after, through)
        assert mine.schema.simpleString() == delta.schema.simpleString()
        assert rows(mine) == rows(delta)
        assert read_from(mine) == "driver"


def test_few_rows_are_grouped_and_joined_by_the_task_that_reads_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path)
    for first in range(0, 40, 10):
        table.append(first, 10)

    def plan() -> str:
        versions = TableVersions(spark, tmp_path)
        whole = versions.rows("things", table.version)
        changed = versions.changes("things", 1, table.version)
        counted = whole.where("id > 3").groupBy("name").count()
        found = counted.join(changed.select("name").distinct(), "name", "left_semi")
        assert rows(found)
        return str(found._jdf.queryExecution().executedPlan().toString())

    read = "PushedFilters: [IsNotNull(id), GreaterThan(id,3)"
    few = plan()
    assert "Exchange" not in few.replace("BroadcastExchange", "")
    assert read in few
    monkeypatch.setattr(table_reader, "ROWS_OF_A_TASK", 39)
    assert "Exchange hashpartitioning" in plan()


def test_columns_that_a_table_is_parted_by_are_read_as_delta_reads_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A history is, by whether a state is current."""
    path, chance = str(tmp_path / "states"), Random(5)  # noqa: S311
    schema = pa.schema([("id", pa.int64()), ("current", pa.bool_()), ("name", pa.string())])
    DeltaTable.create(path, schema, partition_by=["current"], configuration=dict(FEED))
    for _ in range(5):
        numbers = chance.sample(range(12), 6)
        states = [{"id": n, "current": chance.choice([True, False, None])} for n in numbers]
        given = pa.Table.from_pylist(states, schema=schema)
        merge = DeltaTable(path).merge(given, "t.id = s.id", "s", "t", streamed_exec=False)
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    ours, theirs = TableVersions(spark, tmp_path), TableVersions(spark, tmp_path, files_max=0)

    for version in range(1, 6):
        mine, delta = ours.rows("states", version), theirs.rows("states", version)
        assert mine.schema.simpleString() == delta.schema.simpleString()
        assert rows(mine) == rows(delta)
        assert rows(mine.where("current")) == rows(delta.where("current"))
        assert read_from(mine) == "files"
        mine, delta = (each.changes("states", version - 1, version) for each in (ours, theirs))
        assert rows(mine) == rows(delta)
    assert 3 == ours.rows("states", 5).select("current").distinct().count()


def test_a_table_between_two_compactions_is_read_from_its_files_and_no_job_lists_them(
    spark: SparkSession,
) -> None:
    threshold = spark.conf.get("spark.sql.sources.parallelPartitionDiscovery.threshold")

    assert COMMITS_PER_COMPACTION < table_reader.FILES_MAX <= int(threshold or 0)


def test_what_is_large_or_has_other_columns_is_left_to_delta(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path)
    for part in range(3):
        table.append(part * 10, 10)
    few = TableVersions(spark, tmp_path, files_max=2)

    assert read_from(few.rows("things", 2)) == "files"
    assert read_from(few.rows("things", 3)) == "delta"
    assert len(rows(few.rows("things", 3))) == 30

    monkeypatch.setattr(table_reader, "CHANGES_MAX", 15)
    assert read_from(few.changes("things", 1, 2)) == "driver"
    assert read_from(few.changes("things", 1, 3)) == "feed"

    DeltaTable(table.path).alter.add_columns(list(_field("note")))
    assert read_from(few.changes("things", 2, table.version)) == "feed"
    mine = TableVersions(spark, tmp_path).rows("things", table.version)
    delta = TableVersions(spark, tmp_path, files_max=0)
    assert read_from(mine) == "files"
    assert "note" in mine.columns  # which no file has
    assert rows(mine) == rows(delta.rows("things", table.version))


def test_a_view_is_kept_alike_by_whoever_reads_few_rows_and_many(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path)
    view = DerivedView(
        "names",
        ("name",),
        frozenset(),
        ("things",),
        "SELECT name, count(*) AS n FROM things GROUP BY 1",
    )
    few, many = TableVersions(session_of_batches(spark), tmp_path), TableVersions(spark, tmp_path)
    derived = DerivedMaintainer(tmp_path, view, many, few)
    own = None

    for part, rows_few in enumerate((1_000, 1_000, 1, 1, 1_000)):
        monkeypatch.setattr(maintainer, "_FEW_ROWS", rows_few)
        table.append(part * 10, 10)
        table.merge()
        at = TableVersion(table.version, 1, part + 1)
        boundary = PublishedVersion(part + 1, 1, part + 1, 0, {"things": at}, complete=False)
        own = derived.maintain(boundary, {"things": at}, own)

        assert own is not None
        wanted = many.rows("things", table.version).groupBy("name").count()
        assert rows(many.rows("names", own.version)) == rows(wanted.toDF("name", "n"))
        read = few if rows_few > 1 else many
        assert ("things", table.version) in read._frames
    assert few.count("things", table.version) is not None
    assert few.count("nothing", 0) is None


def test_tasks_of_few_rows_have_no_code_made_for_their_columns(spark: SparkSession) -> None:
    name = "spark.sql.codegen.factoryMode"
    whole = session_of_batches(spark)
    whole.conf.set(name, "FALLBACK")

    own = session_of_batches(whole)

    assert ("NO_CODEGEN", "FALLBACK") == (own.conf.get(name), whole.conf.get(name))
    assert own.sparkContext is spark.sparkContext


def test_checkpoints_are_written_without_a_process_for_each_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = java_class(spark, "org.apache.hadoop.fs.Path")(str(tmp_path))
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    files = java_class(spark, f"{CHECKPOINTING}.CheckpointFileManager").create(path, conf)

    assert files.getClass().getSimpleName() == "FileSystemBasedCheckpointFileManager"


def test_a_class_of_java_is_looked_up_once(spark: SparkSession) -> None:
    some = java_class(spark, "scala.Some")

    assert java_class(spark, "scala.Some") is some
    assert some(7).get() == 7
    assert scala_object(spark, "scala.None") is scala_object(spark, "scala.None")
    assert scala_object(spark, "scala.None").isEmpty()
    with pytest.raises(LookupError, match=r"scala\.Nothing_here"):
        java_class(spark, "scala.Nothing_here")


def _field(name: str) -> Any:
    from deltalake import Schema

    return Schema.from_arrow(pa.schema([(name, pa.string())])).fields


def test_a_stable_path_shows_what_spark_writes_and_is_read_by_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    stable, v2 = StableTable(tables, "things"), f"delta.`{tables / 'things.v2'}`"
    for start in (0, 10):
        rows = pa.table({"id": range(start, start + 10), "n": [1] * 10})
        write_deltalake(str(tables / "things"), rows, mode="append")
    spark.sql(
        f"CREATE TABLE {v2} (id BIGINT, n BIGINT) USING delta TBLPROPERTIES"
        " ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"INSERT INTO {v2} SELECT id, 1 FROM range(0, 20, 1, 1)")  # noqa: S608
    spark.sql(f"DELETE FROM {v2} WHERE id % 5 = 0")  # noqa: S608
    spark.sql(f"ALTER TABLE {v2} RENAME COLUMN n TO m")

    found, wanted = [], []
    shown = [("things", 1), ("things.v2", 1), ("things.v2", 2), ("things.v2", 3), ("things", 1)]
    for number, (place, version) in enumerate(shown, 1):
        stable.publish(place, TableVersion(version, 1, number), number)
        reader = spark.read.format("delta").option("versionAsOf", version)
        wanted.append(sorted(map(str, reader.load(str(tables / place)).collect())))
        found.append(sorted(map(str, spark.read.format("delta").load(str(stable.path)).collect())))
    stable.clean(0)

    assert [20, 20, 16, 16, 20] == list(map(len, wanted))
    assert wanted == found
    assert 20 == DeltaTable(str(stable.path)).to_pyarrow_table().num_rows


@pytest.mark.parametrize("files_max", [0, table_reader.FILES_MAX], ids=["delta", "files"])
def test_conditions_on_floats_find_what_is_not_a_number(
    spark: SparkSession, tmp_path: Path, files_max: int
) -> None:
    heats = {"id": [1, 2, 3], "the heat, °C": [1.5, math.nan, 1.5], "a.place": ["x"] * 3}
    of_rooms = pa.table({**heats, DELETED_FIELD: [False] * 3})
    table = DerivedTable(tmp_path, "rooms", ("id",))
    table.write(of_rooms, 1, replaces_all=True)
    table.write(of_rooms.slice(1), 2)
    version = DeltaTable(str(tmp_path / "rooms")).version()

    of_version = TableVersions(spark, tmp_path, files_max).rows("rooms", version)

    found = {
        condition: {row.id for row in of_version.where(f"`the heat, °C` {condition}").collect()}
        for condition in ("> 2", "= 1.5", "< 2")
    }
    assert {"> 2": {2}, "= 1.5": {1, 3}, "< 2": {1, 3}} == found
