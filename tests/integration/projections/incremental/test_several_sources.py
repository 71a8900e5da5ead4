"""Derived views over two sources equal their queries at a boundary of each, whatever happens."""

from __future__ import annotations

import shutil
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from headwater.runtime.java.jars import ensure
from projections.definition.registry import load
from projections.job.batch.verify_derived import verify_derived
from projections.job.spark.session import session_of_batches
from projections.job.tasks.derived_tables import DerivedTablesTask
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.publishing.other_sources import published_views, readers
from projections.publishing.published_content import SourcePosition
from projections.publishing.published_versions import Published, promised
from projections.stores.delta.table_format import FEED
from tests.fix_derivation import FEW_ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from projections.publishing.published_content import TableVersion

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

VIEWS = """
from headwater import source, view

till = source("till", tables=["public.orders"])
ledger = source("ledger", tables=["public.invoices"])
view.mirror("orders", till.orders, to=["table"])
view.mirror("invoices", ledger.invoices, to=["table"])
view.sql(
    "billed",
    "SELECT i.id, o.status, i.total FROM invoices i LEFT JOIN orders o ON o.id = i.order_id",
    keys=["id"],
    to=["table"],
)
view.sql(
    "by_status",
    "SELECT status, count(*) AS invoices, sum(total) AS total FROM billed GROUP BY status",
    keys=["status"],
    to=["table"],
)
view.sql(
    "unbilled",
    "SELECT o.id FROM orders o LEFT ANTI JOIN invoices i ON i.order_id = o.id",
    keys=["id"],
    to=["table"],
)
"""
COLUMNS = {
    "orders": [("id", pa.int64()), ("status", pa.string())],
    "invoices": [("id", pa.int64()), ("order_id", pa.int64()), ("total", pa.int64())],
}
STEPS = 14
Rows = list[dict[str, Any]]


class Group:
    """A source's table as its job keeps it, changed at random, and published."""

    def __init__(self, tables: Path, source: str, view: str, chance: Random) -> None:
        self.tables, self.view, self.chance = tables, view, chance
        self.published = Published(tables, source)
        self.place, self.epoch, self.lsn, self.copies = view, 1, 100, 1
        self._create()

    def change(self) -> None:
        """Changes some rows; one version of the table."""
        rows: dict[int, dict[str, Any]] = {}
        for _ in range(self.chance.randint(1, 4)):
            key = self.chance.randint(1, 6)
            row: dict[str, Any] = {"id": key, "_deleted": self.chance.random() < 0.3}
            if self.view == "orders":
                row["status"] = self.chance.choice(["new", "paid", None])
            else:
                row |= {"order_id": self.chance.randint(1, 6), "total": self.chance.randint(0, 9)}
            rows[key] = {**row, "_version": self.lsn}
        schema = self._schema().append(pa.field("_deleted", pa.bool_()))
        given = pa.Table.from_pylist(list(rows.values()), schema=schema)
        (
            DeltaTable(self._path())
            .merge(given, "t.id = s.id", source_alias="s", target_alias="t", streamed_exec=False)
            .when_matched_delete("s._deleted")
            .when_matched_update_all("NOT s._deleted", except_cols=["_deleted"])
            .when_not_matched_insert_all("NOT s._deleted", except_cols=["_deleted"])
            .execute()
        )

    def publish(self, *, complete: bool = True) -> None:
        self.lsn += 10
        versions = {self.place: DeltaTable(self._path()).version()}
        self.published.publish(self.epoch, self.lsn, versions, complete=complete)

    def reset(self) -> None:
        """The source is captured again: its table is new, with versions from the start."""
        self.epoch += 1
        self.lsn = self.chance.choice([50, self.lsn])
        shutil.rmtree(self._path())
        self._create()
        for _ in range(self.chance.randint(0, 3)):
            self.change()
        self.publish()

    def cut_over(self) -> None:
        """Readers see another version of the view, or the first one again."""
        if self.place == self.view or self.chance.random() < 0.5:
            self.copies += 1
            before, self.place = self._path(), f"{self.view}.{self.copies}"
            shutil.copytree(before, self._path())
            self.change()
        else:
            self.place = self.view
        self.publish()
        self.published.switch({self.view: self.place}, backwards=True)

    def lose_publication(self) -> None:
        """The machine fails before the file of the newest boundary is on the disk."""
        versions = self.published.all()
        if len(versions) < 2 or versions[-2].epoch != versions[-1].epoch:
            return  # the table of before is gone
        if versions[-2].views.keys() == versions[-1].views.keys():
            (self.published.folder / f"{versions[-1].number:012d}.json").unlink()

    def _create(self) -> None:
        DeltaTable.create(self._path(), self._schema(), configuration=dict(FEED))

    def _schema(self) -> pa.Schema:
        return pa.schema([*map(pa.field, *zip(*COLUMNS[self.view], strict=True))]).append(
            pa.field("_version", pa.int64())
        )

    def _path(self) -> str:
        return str(self.tables / self.place)


def rows_at(tables: Path, place: str, version: int) -> Rows:
    table = DeltaTable(str(tables / place), version=version)
    found = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
    columns = [each for each in found.column_names if each != "_version"]
    return sorted(found.select(columns).to_pylist(), key=repr)


def expected(tables: Path, made_from: dict[str, int]) -> dict[str, Rows]:
    """What the three views have over two tables at these versions."""
    orders, invoices = (
        next(rows_at(tables, place, at) for place, at in made_from.items() if place[0] == begin)
        for begin in ("o", "i")
    )
    status = {row["id"]: row["status"] for row in orders}
    billed = [
        {"id": row["id"], "status": status.get(row["order_id"]), "total": row["total"]}
        for row in invoices
    ]
    count, total = Counter[Any](), Counter[Any]()
    for row in billed:
        count[row["status"]] += 1
        total[row["status"]] += row["total"]
    by_status = [{"status": s, "invoices": n, "total": total[s]} for s, n in count.items()]
    unbilled = [{"id": key} for key in status.keys() - {row["order_id"] for row in invoices}]
    found = {"billed": billed, "by_status": by_status, "unbilled": unbilled}
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def job(folder: Path) -> JobSpec:
    (folder / "views.py").write_text(VIEWS)
    declared = load(folder / "views.py")
    config = JobConfig.of_tables(
        "till", folder, tuple(ensure("spark")), master="local[2]", conf=FEW_ROWS
    )
    derived = tuple(declared.derived.values())
    return JobSpec(config, derived=derived, cross_reads=declared.cross_reads("till"))


def bring(deriver: DerivedTablesTask, spec: JobSpec, till: Group, *, killed: bool = False) -> None:
    """Has the job bring its views to a boundary; killed, it has written and publishes nothing."""
    till.publish(complete=False)
    newest = till.published.newest()
    assert newest is not None
    others = published_views(spec.config.addresses.tables, spec.cross_reads.read)
    made = deriver.derived(newest, others)
    assert {} == deriver.faults
    if not killed:
        till.published.complete(newest, made, others.positions)


def require_equal(spec: JobSpec, till: Group, ledger: Group) -> None:
    tables, latest, other = (
        spec.config.addresses.tables,
        till.published.latest(),
        ledger.published.latest(),
    )
    assert latest is not None
    assert other is not None
    vector = {"ledger": SourcePosition(other.epoch, other.lsn)}
    views = {name: latest.views[name] for name in ("billed", "by_status", "unbilled")}
    made_from = {"orders": latest.views["orders"].version}
    made_from[ledger.place] = other.views[ledger.place].version

    assert [vector] * 4 == [latest.others, *(table.others for table in views.values())]
    assert {(latest.epoch, latest.lsn)} == {(t.epoch, t.lsn) for t in views.values()}
    assert [made_from] * 2 == [views["billed"].made_from, views["unbilled"].made_from]
    assert expected(tables, made_from) == {
        name: rows_at(tables, name, table.version) for name, table in views.items()
    }


def started(session: SparkSession, spec: JobSpec) -> DerivedTablesTask:
    return DerivedTablesTask(session, session_of_batches(session), spec)


@pytest.mark.rotating("seed", range(8), 1)
def test_views_over_two_sources_equal_their_queries_at_a_boundary_of_each(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    spec, chance = job(tmp_path), Random(seed)  # noqa: S311
    deriver = started(spark, spec)
    till = Group(spec.config.addresses.tables, "till", "orders", chance)
    ledger = Group(spec.config.addresses.tables, "ledger", "invoices", chance)
    ledger.publish()
    for _ in range(STEPS):
        for _ in range(chance.randint(0, 2)):
            till.change()
        chance.choice(
            [ledger.change, ledger.publish, ledger.reset, ledger.cut_over, ledger.lose_publication]
        )()
        if chance.random() < 0.4:
            bring(deriver, spec, till, killed=True)
            deriver = started(spark, spec)
            chance.choice([ledger.change, till.change])()
            ledger.publish()
        bring(deriver, spec, till)

        require_equal(spec, till, ledger)

    assert all(report.equal for report in verify_derived(spec))


def test_a_view_over_two_sources_waits_for_the_first_boundary_of_each(
    spark: SparkSession, tmp_path: Path
) -> None:
    spec = job(tmp_path)
    deriver = started(spark, spec)
    till = Group(spec.config.addresses.tables, "till", "orders", Random(1))  # noqa: S311
    till.change()
    bring(deriver, spec, till)
    before = till.published.latest()
    ledger = Group(spec.config.addresses.tables, "ledger", "invoices", Random(2))  # noqa: S311
    ledger.change()
    ledger.publish()
    bring(deriver, spec, till)

    assert before is not None
    assert {"orders"} == before.views.keys()
    require_equal(spec, till, ledger)


def test_versions_that_a_view_of_another_source_is_made_from_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    spec = job(tmp_path)
    deriver = started(spark, spec)
    tables = spec.config.addresses.tables
    till = Group(tables, "till", "orders", Random(3))  # noqa: S311
    ledger = Group(tables, "ledger", "invoices", Random(4))  # noqa: S311
    ledger.publish()
    bring(deriver, spec, till)
    for _ in range(5):
        ledger.change()
    ledger.publish()
    newest = DeltaTable(str(tables / "invoices")).version()

    made: dict[str, TableVersion] = {each.physical_name: each.table for each in _readers(tables)}
    assert {"billed": 0, "unbilled": 0, "by_status": None} == {
        place: table.made_from.get("invoices") for place, table in made.items()
    }
    assert [0, newest] == promised(tables, "invoices")


def _readers(tables: Path) -> Any:
    found = readers(tables, "ledger", {"invoices"})
    assert {"till"} == {each.source for each in found}
    return found


def test_a_killed_job_that_had_read_another_version_leaves_no_row_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    spec = job(tmp_path)
    deriver = started(spark, spec)
    tables = spec.config.addresses.tables
    till = Group(tables, "till", "orders", Random(5))  # noqa: S311
    ledger = Group(tables, "ledger", "invoices", Random(6))  # noqa: S311
    ledger.change()
    ledger.publish()
    bring(deriver, spec, till)
    ledger.cut_over()
    bring(deriver, spec, till, killed=True)
    ledger.place = "invoices"
    ledger.publish()
    ledger.published.switch({"invoices": "invoices"}, backwards=True)
    bring(started(spark, spec), spec, till)

    require_equal(spec, till, ledger)
