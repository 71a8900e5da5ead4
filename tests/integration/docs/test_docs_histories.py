"""The page on histories is run as it stands."""

from __future__ import annotations

import doctest
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc.table import Column, ColumnKind, TableName, TableSchema
from headwater.reading import sql as reading_sql
from projections.changes.row_change import RowChange
from projections.definition.registry import load
from projections.definition.views import Store
from projections.planning.job_config import StoreAddresses
from projections.planning.view_plan import plan_views
from projections.stores.factory import open_sink

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[3] / "docs" / "histories.md"
ID = Column("id", ColumnKind.INTEGER, "integer", nullable=False)
SINCE = Column("since", ColumnKind.TIMESTAMPTZ, "timestamp with time zone")
TEXTS = {name: Column(name, ColumnKind.TEXT, "text") for name in ("status", "note", "internal")}
MONEY = {
    name: Column(name, ColumnKind.NUMERIC, "numeric(9,2)", 9, 2) for name in ("total", "price")
}
ORDERS = TableSchema(TableName("public", "orders"), (ID, TEXTS["status"], MONEY["total"]), ("id",))
PRICES = TableSchema(
    TableName("public", "prices"),
    (ID, MONEY["price"], TEXTS["note"], SINCE, TEXTS["internal"]),
    ("id",),
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


class Shop:
    """Two tables and their histories, as far as the page needs them."""

    def __init__(self, folder: Path) -> None:
        (folder / "views.py").write_text("\n".join(blocks("python")))
        declared = load(folder / "views.py").views.values()
        plans = plan_views(declared, {schema.table: schema for schema in (ORDERS, PRICES)})
        self.plans = {plan.name: plan for plan in plans}
        self.tables = folder / "tables"
        self.sink = open_sink(Store.TABLE, StoreAddresses(self.tables, "", "", ""))
        self.number = 0
        for plan in plans:
            self.sink.prepare(plan)

    def commit(self, view: str, at: str, **values: Any) -> None:
        row = dict.fromkeys(self.plans[view].schema.by_name) | values
        row |= {name: Decimal(row[name]) for name in MONEY if name in values}
        row |= {"since": time(values["since"])} if "since" in values else {}
        self._apply(view, at, values["id"], row)

    def delete(self, view: str, at: str, **key: int) -> None:
        self._apply(view, at, key["id"], None)

    def ask(self, sql: str) -> None:
        for row in reading_sql.run(sql, self.tables).to_pylist():
            shown = [str(value) if isinstance(value, Decimal) else value for value in row.values()]
            print(tuple(f"{v:%F %R}" if isinstance(v, datetime) else v for v in shown))  # noqa: T201

    def _apply(self, view: str, at: str, key: int, row: dict[str, Any] | None) -> None:
        self.number += 8
        at_us = int(time(at).timestamp()) * 1_000_000
        self.sink.apply(self.plans[view], [RowChange((key,), 1 << 56 | self.number, row, at_us)])


def time(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_every_example_of_the_page_does_what_it_shows(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    names = {"commit": shop.commit, "delete": shop.delete, "ask": shop.ask}
    examples = "\n".join(blocks("pycon"))
    found = doctest.DocTestParser().get_doctest(examples, names, "histories.md", str(PAGE), 0)
    told: list[str] = []
    done = doctest.DocTestRunner(verbose=False).run(found, out=told.append)
    assert not told, "".join(told)
    assert len(found.examples) == done.attempted > 10
