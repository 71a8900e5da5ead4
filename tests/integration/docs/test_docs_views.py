"""The pages on views and on time are run as they stand."""

from __future__ import annotations

import doctest
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headwater.reading import sql as reading_sql
from headwater.runtime.java.jars import ensure
from projections.definition.registry import load
from projections.job.spark.session import session_of_batches
from projections.job.tasks.derived_tables import DerivedTablesTask
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.publishing.published_versions import Published
from projections.stores.delta.table_format import FEED
from projections.stores.delta.table_stats import states
from tests.fix_derivation import FEW_ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = (DOCS / "views.md", DOCS / "time.md")
VERSION = pa.field("_version", pa.int64())
ID = pa.field("id", pa.int64())
PERSON = pa.field("person", pa.int64())
MOMENT = pa.timestamp("us", "UTC")
AT = pa.field("at", MOMENT)
TABLES = {
    "customers": (("id",), pa.schema([ID, ("name", pa.string())])),
    "orders": (
        ("id",),
        pa.schema(
            [
                ID,
                ("customer_id", pa.int64()),
                ("status", pa.string()),
                ("total", pa.decimal128(12, 2)),
            ]
        ),
    ),
    "items": (
        ("order_id", "line"),
        pa.schema([("order_id", pa.int64()), ("line", pa.int64()), ("product", pa.string())]),
    ),
    "searches": (
        ("id",),
        pa.schema([ID, PERSON, ("term", pa.string()), AT, ("recorded_at", MOMENT)]),
    ),
    "searches_history": (
        ("id", "valid_from"),
        pa.schema(
            [
                ID,
                PERSON,
                ("term", pa.string()),
                AT,
                ("valid_from", MOMENT),
                ("valid_to", MOMENT),
                ("is_current", pa.bool_()),
            ]
        ),
    ),
    "clicks": (("id",), pa.schema([ID, ("search_id", pa.int64()), PERSON, AT])),
    "payments": (
        ("id",),
        pa.schema(
            [
                ID,
                ("card", pa.string()),
                ("status", pa.string()),
                ("country", pa.string()),
                ("amount", pa.int64()),
                AT,
            ]
        ),
    ),
    "purchases": (
        ("id",),
        pa.schema([ID, ("card", pa.string()), ("amount", pa.int64()), AT]),
    ),
    "readings": (
        ("id",),
        pa.schema(
            [
                ID,
                ("device", pa.string()),
                ("device_at", MOMENT),
                ("sent_at", MOMENT),
                ("received_at", MOMENT),
            ]
        ),
    ),
    "offers": (("id",), pa.schema([ID, ("title", pa.string()), ("price", pa.int64())])),
    "wishes": (("id",), pa.schema([ID, PERSON, ("wanted", pa.string())])),
    "people_history": (
        ("id", "valid_from"),
        pa.schema([ID, ("city", pa.string()), ("valid_from", MOMENT), ("valid_to", MOMENT)]),
    ),
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


class Shop:
    """The tables of the pages' mirrors, and the views made from them."""

    def __init__(self, folder: Path, session: SparkSession) -> None:
        queries = [block for page in PAGES for block in blocks(page, "sql")]
        declared = "\n".join(block for page in PAGES for block in blocks(page, "python"))
        (folder / "views.py").write_text(declared)
        (folder / "order_document.sql").write_text("\n".join(queries))
        derived = tuple(load(folder / "views.py").derived.values())
        nowhere = "redis://127.0.0.1:1"
        places = (nowhere, "", "", folder, nowhere, "", tuple(ensure("spark")))
        config = JobConfig("shop", *places, master="local[2]", conf=FEW_ROWS)
        self.spec = JobSpec(config, derived=derived)
        self.tables = self.spec.config.addresses.tables
        self.published = Published(self.tables, "shop")
        self.deriver = DerivedTablesTask(session, session_of_batches(session), self.spec)
        self.lsn = 100
        for name, (_, schema) in TABLES.items():
            path, whole = str(self.tables / name), schema.append(VERSION)
            DeltaTable.create(path, whole, configuration=dict(FEED))

    def commit(self, name: str, /, **values: Any) -> None:
        schema = TABLES[name][1]
        for column, value in values.items():
            if schema.field(column).type == MOMENT and value is not None:
                values[column] = datetime.fromisoformat(value).replace(tzinfo=UTC)
            elif column == "amount":
                values[column] = int(value)
            elif column == "total":
                values[column] = Decimal(value)
        merge = self._merge(name, values)
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def delete(self, name: str, /, **values: Any) -> None:
        self._merge(name, values).when_matched_delete().execute()

    def _merge(self, name: str, values: dict[str, Any]) -> Any:
        keys, schema = TABLES[name]
        row = dict.fromkeys(schema.names) | values | {"_version": self.lsn}
        given = pa.Table.from_pylist([row], schema=schema.append(VERSION))
        on = " AND ".join(f"t.{key} = s.{key}" for key in keys)
        table = DeltaTable(str(self.tables / name))
        return table.merge(given, on, source_alias="s", target_alias="t", streamed_exec=False)

    def publish(self) -> None:
        self.lsn += 10
        versions = {name: DeltaTable(str(self.tables / name)).version() for name in TABLES}
        version = self.published.publish(1, self.lsn, versions, complete=False)
        assert version is not None
        self.published.complete(version, self.deriver.derived(version))
        assert {} == self.deriver.faults

    def ask(self, sql: str) -> None:
        for row in reading_sql.run(sql, self.tables).to_pylist():
            print(tuple(map(_shown, row.values())))  # noqa: T201

    def kept(self, name: str) -> str:
        (maintainer,) = (each for each in self.deriver.maintainers if each.view.name == name)
        said = maintainer.explanation
        assert said is not None
        return f"{said.strategy} by {', '.join(said.by)}"

    def state(self, name: str) -> None:
        version = self.published.latest()
        assert version is not None
        views = {view.name: view for view in self.spec.derived}
        said = {name: {"strategy": "keyed", "by": ()}}
        (found,) = states(self.tables, version, {}, {name: views[name]}, said)
        times = [found.kept.oldest, found.kept.newest]
        print(found.kept.rows, *map(_shown, times), found.limit or "-", found.reads)  # noqa: T201
        assert found.kept.disk_bytes > found.kept.size_bytes


def _shown(value: object) -> object:
    if isinstance(value, datetime):
        return value.strftime("%F %T").removesuffix(":00")
    return str(value) if isinstance(value, Decimal) else value


_ASKED = ("commit", "delete", "publish", "ask", "kept", "state")


def test_the_pages_are_right(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop(tmp_path, spark)
    names = {name: getattr(shop, name) for name in _ASKED}
    parser, failed = doctest.DocTestParser(), []
    for page in PAGES:
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        text = "\n".join(blocks(page, "pycon"))
        examples = parser.get_doctest(text, dict(names), page.name, str(page), 0)
        runner.run(examples, out=failed.append)
        assert len(examples.examples) > 10

    assert failed == []
