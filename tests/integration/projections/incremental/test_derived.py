"""Derived views, kept boundary by boundary, equal their query run over the tables as they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cdc.table import Column, ColumnKind, TableName, TableSchema
from headwater.runtime.java.jars import ensure
from projections.definition.operators.measures import Measures
from projections.definition.operators.windows import Session, Sliding
from projections.definition.registry import load
from projections.definition.views import DerivedView, MirrorView, Store
from projections.errors import DuplicateKeyError
from projections.job.batch.check_dependents import unfit
from projections.job.batch.verify_derived import verify_derived
from projections.job.spark.session import session_of_batches
from projections.job.tasks.derived_tables import DerivedTablesTask
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import plan_views
from projections.publishing.published_versions import Published
from projections.stores.delta.table_format import FEED
from tests.fix_derivation import FEW_ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from projections.planning.view_plan import ViewPlan
    from projections.publishing.published_content import PublishedVersion

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

VIEWS = """
from headwater import Session, Sliding, expect, source, view

shop = source("shop", tables=["public.customers", "public.orders", "public.items"])
customers = view.mirror("customers", shop.customers, to=["table"])
orders = view.mirror("orders", shop.orders, to=["table"])
items = view.mirror("items", shop["public.items"], to=["table"])

view.document(
    "order_document",
    "documents.sql",
    keys=["id"],
    to=["table"],
)
by_status = view.aggregate(
    "by_status",
    orders,
    by=["status"],
    to=["table"],
    count="orders",
    sums={"total": "total"},
    distinct={"customers": "customer_id"},
    top={"largest": view.Top("total", 2, ("id",))},
)
view.sql(
    "large",
    "-- CONSTRAINT large EXPECT (total > 4) ON VIOLATION DROP ROW\\nSELECT id, total FROM orders",
    keys=["id"],
    to=["table"],
)
several = expect("several", "orders > 1 AND status IS NOT NULL", on_fail="drop")
view.aggregate("several", orders, by=["status"], to=["table"], count="orders", expect=[several])
view.sql(
    "small",
    "SELECT id, total FROM orders",
    keys=["id"],
    to=["table"],
    expect=[expect("small", "total < 100", on_fail="fail"), expect("odd", "total <> 4")],
)
view.aggregate(
    "visits",
    orders,
    by=["customer_id"],
    window=Session("placed_at", "8 minutes"),
    to=["table"],
    count="orders",
)
view.aggregate(
    "lately", orders, window=Sliding("placed_at", "8 minutes"), to=["table"], count="orders"
)
view.aggregate("by_unit", items, by=["stock.unit"], to=["table"], count="count")
view.sql("with_line", "SELECT * FROM items", keys=["order_id", "line"], to=["table"])
view.sql(
    "numbered",
    "SELECT customer_id, row_number() OVER (PARTITION BY customer_id ORDER BY id) AS number, id"
    " FROM orders",
    keys=["customer_id", "number"],
    to=["table"],
)


@view(keys=["orders"], to=["table"])
def statuses_by_count(by_status):
    return by_status.groupBy("orders").agg({"status": "max"}).withColumnRenamed(
        "max(status)", "status"
    )
"""
DOCUMENTS = """
SELECT o.id, o.status, o.total, c.name AS customer, i.items
  FROM orders o
  LEFT JOIN customers c ON c.id = o.customer_id
  LEFT JOIN (SELECT order_id, sort_array(collect_list(struct(line, `stock.unit` AS sku))) AS items
               FROM items GROUP BY order_id) i ON i.order_id = o.id
"""
TABLES = {
    "customers": pa.schema([("id", pa.int64()), ("name", pa.string())]),
    "orders": pa.schema(
        [
            ("id", pa.int64()),
            ("customer_id", pa.int64()),
            ("status", pa.string()),
            ("total", pa.decimal128(12, 2)),
            ("placed_at", pa.timestamp("us", "UTC")),
        ]
    ),
    "items": pa.schema(
        [("order_id", pa.int64()), ("line", pa.int64()), ("stock.unit", pa.string())]
    ),
}
PLACED = datetime(2026, 11, 25, 12, tzinfo=UTC)
KEYS = {"customers": ["id"], "orders": ["id"], "items": ["order_id", "line"]}


class Shop:
    """Tables as the job keeps them, changed at random, and published boundary by boundary."""

    def __init__(self, tables: Path, chance: Random) -> None:
        self.tables, self.chance = tables, chance
        self.published = Published(tables, "shop")
        self.lsn = 100
        for name, schema in TABLES.items():
            whole = schema.append(pa.field("_version", pa.int64()))
            DeltaTable.create(str(tables / name), whole, configuration=dict(FEED))

    def change(self) -> None:
        for name in self.chance.sample(sorted(TABLES), self.chance.randint(1, 3)):
            for _ in range(self.chance.randint(1, 2)):
                self._merge(name)

    def _merge(self, name: str) -> None:
        chance = self.chance
        rows = {}
        for _ in range(chance.randint(1, 6)):
            row: dict[str, Any] = {"_deleted": chance.random() < 0.25, "_version": self.lsn}
            if name == "customers":
                row |= {"id": chance.randint(1, 4), "name": chance.choice(["a", "b", None])}
            elif name == "orders":
                status = chance.choice(["placed", "paid", None])
                row |= {"id": chance.randint(1, 6), "customer_id": chance.randint(1, 5)}
                row |= {"status": status, "total": chance.randint(0, 9)}
                row |= {"placed_at": PLACED + timedelta(minutes=chance.randint(0, 40))}
            else:
                row |= {"order_id": chance.randint(1, 7), "line": chance.randint(1, 3)}
                row |= {"stock.unit": chance.choice(["x", "y"])}
            rows[tuple(row[key] for key in KEYS[name])] = row
        self._give(name, list(rows.values()))

    def _give(self, name: str, rows: list[dict[str, Any]]) -> None:
        schema = TABLES[name].append(pa.field("_version", pa.int64()))
        given = pa.Table.from_pylist(rows, schema=schema.append(pa.field("_deleted", pa.bool_())))
        on = " AND ".join(f"t.{key} = s.{key}" for key in KEYS[name])
        (
            DeltaTable(str(self.tables / name))
            .merge(given, on, source_alias="s", target_alias="t", streamed_exec=False)
            .when_matched_delete("s._deleted")
            .when_matched_update_all("NOT s._deleted", except_cols=["_deleted"])
            .when_not_matched_insert_all("NOT s._deleted", except_cols=["_deleted"])
            .execute()
        )

    def put_order(self, number: int, total: int) -> None:
        row = {"id": number, "customer_id": 1, "status": "placed", "total": total}
        row |= {"placed_at": PLACED}
        self._give("orders", [{**row, "_deleted": False, "_version": self.lsn}])

    def widen(self, name: str, column: str) -> None:
        path = str(self.tables / name)
        found = pa.table(DeltaTable(path).to_pyarrow_table())
        wider = pc.add(found[column].cast(pa.float64()), 0.5)
        found = found.set_column(found.schema.get_field_index(column), column, wider)
        write_deltalake(path, found, mode="overwrite", schema_mode="overwrite")

    def drop_column(self, name: str, column: str) -> None:
        path = str(self.tables / name)
        left = pa.table(DeltaTable(path).to_pyarrow_table()).drop_columns([column])
        write_deltalake(path, left, mode="overwrite", schema_mode="overwrite")

    def lose_feed(self) -> None:
        """Removes the files of changes, as if something had been forgotten."""
        for name in TABLES:
            for file in (self.tables / name / "_change_data").glob("*"):
                file.unlink()

    def publish(self) -> PublishedVersion:
        self.lsn += 10
        versions = {name: DeltaTable(str(self.tables / name)).version() for name in TABLES}
        self.published.publish(1, self.lsn, versions, complete=False)
        newest = self.published.newest()
        assert newest is not None
        return newest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "views.py").write_text(VIEWS)
    (tmp_path / "documents.sql").write_text(DOCUMENTS)
    return tmp_path


def job(folder: Path) -> JobSpec:
    derived = tuple(load(folder / "views.py").derived.values())
    nowhere = "127.0.0.1:1"
    return JobSpec(
        JobConfig(
            "shop",
            nowhere,
            "",
            "",
            folder,
            "",
            "",
            tuple(ensure("spark")),
            master="local[2]",
            conf=FEW_ROWS,
        ),
        derived=derived,
    )


def rows(tables: Path, published: Published, name: str) -> list[dict[str, Any]]:
    """A view as it is published."""
    latest = published.latest()
    assert latest is not None
    table = DeltaTable(str(tables / name), version=latest.views[name].version)
    sql = "SELECT * FROM t"
    found = pa.table(QueryBuilder().register("t", table).execute(sql).read_all())
    columns = [each for each in found.column_names if each != "_version"]
    return sorted(found.select(columns).to_pylist(), key=repr)


def refuse_twice(spec: JobSpec) -> None:
    """A view that its key does not identify is refused with an example to whoever asks."""
    sql = "SELECT coalesce(status, 'none') AS status, id % 2 AS half FROM orders"
    twice = DerivedView("twice", ("half",), frozenset({Store.TABLE}), ("orders",), sql)
    with pytest.raises(DuplicateKeyError, match="twice") as caught:
        verify_derived(replace(spec, derived=(twice,)))
    assert caught.value.example in {("0",), ("1",)}


BY_STATUS = (
    "SELECT status, count(*) AS orders, sum(total) AS total,"
    " count(DISTINCT customer_id) AS customers,"
    " slice(sort_array(collect_list(struct(total, id)), false), 1, 2) AS largest"
    " FROM orders GROUP BY status"
)
NUMBERED = (
    "SELECT customer_id, row_number() OVER (PARTITION BY customer_id ORDER BY id) AS number, id"
    " FROM orders"
)
VISITS = Session("placed_at", "8 minutes").select(
    "orders", ("customer_id",), Measures("orders"), ""
)
LATELY = Sliding("placed_at", "8 minutes").select("orders", (), Measures("orders"), "")
QUERIES = {
    "order_document": DOCUMENTS,
    "by_status": BY_STATUS,
    "large": "SELECT id, total FROM orders WHERE total > 4",
    "small": "SELECT id, total FROM orders",
    "several": "SELECT status, count(*) AS orders FROM orders WHERE status IS NOT NULL"
    " GROUP BY status HAVING count(*) > 1",
    "by_unit": "SELECT `stock.unit`, count(*) AS `count` FROM items GROUP BY `stock.unit`",
    "with_line": "SELECT * FROM items",
    "numbered": NUMBERED,
    "visits": VISITS,
    "lately": LATELY,
    "statuses_by_count": f"SELECT orders, max(status) AS status FROM ({BY_STATUS})"  # noqa: S608
    " GROUP BY orders",
}


def require_equal(session: SparkSession, shop: Shop, published: PublishedVersion) -> None:
    """Each view has what its query gives over the rows of the tables at the same boundary."""
    for name in TABLES.keys() & published.views.keys():
        table = DeltaTable(str(shop.tables / name), version=published.views[name].version)
        given = table.to_pyarrow_table().drop_columns(["_version"])
        session.createDataFrame(given).createOrReplaceTempView(name)
    for name, query in QUERIES.items():
        oracle = session.sql(query).toArrow().to_pylist()
        assert sorted(oracle, key=repr) == rows(shop.tables, shop.published, name)


def test_views_made_from_others_equal_their_queries_at_every_boundary(
    spark: SparkSession, folder: Path
) -> None:
    spec = job(folder)
    shop = Shop(spec.config.addresses.tables, Random(11))  # noqa: S311
    deriver = DerivedTablesTask(spark, session_of_batches(spark), spec)
    for maintainer in deriver.maintainers:
        maintainer.onward_rows_min = 0
    for number in range(8):
        if number in {2, 6, 7}:  # the job ends after it has written, before it says so
            shop.change()
            deriver.derived(shop.publish())
        shop.change()
        if number == 5:
            shop.lose_feed()
        newest = shop.publish()
        shop.published.complete(newest, deriver.derived(newest))
        assert {} == deriver.faults

        require_equal(spark, shop, newest)

    reports = verify_derived(spec)
    assert {report.view for report in reports} == {*QUERIES}
    assert all(report.equal for report in reports)
    refuse_twice(spec)
    withheld = {report.view: report.withheld for report in reports if report.withheld}
    ids = spark.sql("SELECT id FROM orders WHERE coalesce(total, 0) <= 4").count()
    assert withheld.get("large", 0) == ids
    failed = {maintainer.view.name: maintainer.failed for maintainer in deriver.maintainers}
    assert failed["large"]["large"] > 0
    assert failed["several"]["several"] > 0
    assert failed["small"]["small"] == 0

    # a row that halts a view halts it alone, until there is none
    shop.put_order(7, 500)
    newest = shop.publish()
    shop.published.complete(newest, deriver.derived(newest))
    fault = deriver.faults.pop("small")
    assert (fault.code, fault.detail) == ("HW-P093", "expectation small")
    assert {} == deriver.faults
    assert 7 in {row["id"] for row in rows(shop.tables, shop.published, "large")}
    assert 7 not in {row["id"] for row in rows(shop.tables, shop.published, "small")}
    shop.put_order(7, 50)
    newest = shop.publish()
    shop.published.complete(newest, deriver.derived(newest))
    assert {} == deriver.faults
    assert {"id": 7, "total": 50} in rows(shop.tables, shop.published, "small")

    _widened(shop, deriver, spec)

    # a view whose query names a column that is gone stays where it is, with what it had
    document = rows(shop.tables, shop.published, "order_document")
    shop.drop_column("items", "stock.unit")
    shop.put_order(8, 60)
    newest = shop.publish()
    shop.published.complete(newest, deriver.derived(newest))
    for view in ("order_document", "by_unit"):
        fault = deriver.faults.pop(view)
        assert ("HW-P081", True) == (fault.code, "stock.unit" in str(fault.detail))
    assert {} == deriver.faults
    assert document == rows(shop.tables, shop.published, "order_document")
    assert {"id": 8, "total": 60.0} in rows(shop.tables, shop.published, "small")


@pytest.mark.usefixtures("spark")
def test_a_query_that_would_not_fit_is_known_before_any_row_is_there(folder: Path) -> None:
    spec = job(folder)
    tables = {name: _table(name) for name in TABLES}
    assert {} == unfit(spec, _plans(tables))

    kept = tuple(column for column in tables["orders"].columns if column.name != "total")
    without = TableSchema(tables["orders"].table, kept, ("id",))
    found = unfit(spec, _plans(tables | {"orders": without}))
    # statuses_by_count is made from by_status, of which nothing is known then
    assert {"order_document", "by_status", "large", "small"} == found.keys()
    assert {"HW-P081"} == {fault.code for fault in found.values()}
    assert all("total" in str(fault.detail) for fault in found.values())

    renamed = tuple(replace(column, name="code") for column in tables["items"].columns[2:])
    columns = (*tables["items"].columns[:2], *renamed)
    items = TableSchema(tables["items"].table, columns, ("order_id", "line"))
    assert {"order_document", "by_unit"} == unfit(spec, _plans(tables | {"items": items})).keys()


def _table(name: str) -> TableSchema:
    kinds = {
        pa.int64(): (ColumnKind.INTEGER, "bigint"),
        pa.string(): (ColumnKind.TEXT, "text"),
        pa.timestamp("us", "UTC"): (ColumnKind.TIMESTAMPTZ, "timestamp with time zone"),
        pa.decimal128(12, 2): (ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
    }
    columns = tuple(Column(field.name, *kinds[field.type]) for field in TABLES[name])
    return TableSchema(TableName("public", name), columns, tuple(KEYS[name]))


def _plans(tables: Mapping[str, TableSchema]) -> tuple[ViewPlan, ...]:
    to = frozenset({Store.TABLE})
    views = [MirrorView(name, "shop", each.table, (), to) for name, each in tables.items()]
    return plan_views(views, {each.table: each for each in tables.values()})


def _widened(shop: Shop, deriver: DerivedTablesTask, spec: JobSpec) -> None:
    """A column of an input has become wider: so does the view's, and nothing is rounded."""
    shop.widen("orders", "total")
    newest = shop.publish()
    shop.published.complete(newest, deriver.derived(newest))
    assert {} == deriver.faults
    assert {"id": 7, "total": 50.5} in rows(shop.tables, shop.published, "small")
    assert all(report.equal for report in verify_derived(spec))
