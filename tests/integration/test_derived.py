"""Derived views, kept boundary by boundary, equal their query run over the tables as they are."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from headwater.supply.jars import ensure
from projections.published import Published
from projections.sinks.table import FEED
from projections.spark.deriver import Deriver
from projections.spark.session import start_session
from projections.spec import JobSpec
from projections.view import load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

VIEWS = """
from headwater import source, view

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
  LEFT JOIN (SELECT order_id, sort_array(collect_list(struct(line, sku))) AS items
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
        ]
    ),
    "items": pa.schema([("order_id", pa.int64()), ("line", pa.int64()), ("sku", pa.string())]),
}
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
            else:
                row |= {"order_id": chance.randint(1, 7), "line": chance.randint(1, 3)}
                row |= {"sku": chance.choice(["x", "y"])}
            rows[tuple(row[key] for key in KEYS[name])] = row
        schema = TABLES[name].append(pa.field("_version", pa.int64()))
        given = pa.Table.from_pylist(
            list(rows.values()), schema=schema.append(pa.field("_deleted", pa.bool_()))
        )
        on = " AND ".join(f"t.{key} = s.{key}" for key in KEYS[name])
        (
            DeltaTable(str(self.tables / name))
            .merge(given, on, source_alias="s", target_alias="t", streamed_exec=False)
            .when_matched_delete("s._deleted")
            .when_matched_update_all("NOT s._deleted", except_cols=["_deleted"])
            .when_not_matched_insert_all("NOT s._deleted", except_cols=["_deleted"])
            .execute()
        )

    def publish(self) -> None:
        self.lsn += 10
        versions = {name: DeltaTable(str(self.tables / name)).version() for name in TABLES}
        self.published.publish(1, self.lsn, versions, complete=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "views.py").write_text(VIEWS)
    (tmp_path / "documents.sql").write_text(DOCUMENTS)
    return tmp_path


def job(folder: Path) -> JobSpec:
    derived = tuple(load(folder / "views.py").derived.values())
    nowhere = "127.0.0.1:1"
    return JobSpec(
        "shop",
        (),
        nowhere,
        "",
        "",
        folder,
        "",
        "",
        tuple(ensure("spark")),
        master="local[2]",
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


def test_views_made_from_others_equal_their_queries_at_every_boundary(folder: Path) -> None:
    spec = job(folder)
    session = start_session(spec)
    shop = Shop(spec.addresses.tables, Random(11))  # noqa: S311
    deriver = Deriver(session, spec)
    for _ in range(12):
        shop.change()
        shop.publish()
        newest = shop.published.newest()
        assert newest is not None
        shop.published.complete(newest, deriver.derived(newest))
        assert {} == deriver.faults

        for name, version in newest.views.items():
            reader = session.read.format("delta").option("versionAsOf", version.version)
            table = reader.load(str(shop.tables / name)).drop("_version")
            table.createOrReplaceTempView(name)
        by_status = (
            "SELECT status, count(*) AS orders, sum(total) AS total,"
            " count(DISTINCT customer_id) AS customers,"
            " slice(sort_array(collect_list(struct(total, id)), false), 1, 2) AS largest"
            " FROM orders GROUP BY status"
        )
        wanted = {
            "order_document": DOCUMENTS,
            "by_status": by_status,
            "statuses_by_count": f"SELECT orders, max(status) AS status FROM ({by_status})"  # noqa: S608
            " GROUP BY orders",
        }
        for name, query in wanted.items():
            oracle = session.sql(query).toArrow().to_pylist()
            assert sorted(oracle, key=repr) == rows(shop.tables, shop.published, name)
