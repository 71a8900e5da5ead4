from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.definition.cache_options import CacheOptions, NameTemplate
from projections.definition.mirror import mirror, source
from projections.errors import DeclarationError, PlanError
from projections.stores.valkey.row import expanded, number

SCHEMA = TableSchema(
    TableName("public", "orders"),
    (
        Column("id", ColumnKind.INTEGER, "bigint"),
        Column("status", ColumnKind.TEXT, "text"),
        Column("total", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
        Column("any digits", ColumnKind.NUMERIC, "numeric"),
        Column("weight", ColumnKind.FLOAT, "double precision"),
    ),
    ("id",),
)


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "list"},
        {"ttl": timedelta(0)},
        {"ttl": timedelta(seconds=-1)},
        {"lookups": "orders:{id}"},
        {"lookups": [""]},
        {"lookups": ["orders:"]},
        {"lookups": ["orders:{id"]},
        {"lookups": ["orders:x{id}"]},
        {"lookups": ["orders {id}"]},
        {"lookups": ["orders:{id}", "{status}:7"]},
        {"counters": {"a": "*", "{status}": "total"}},
        {"lookups": [f"n{n}:{{id}}" for n in range(17)]},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        CacheOptions(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"lookups": ["by:{nothing}"]},
        {"counters": {"n": "nothing"}},
        {"counters": {"n": "status"}},
        {"counters": {"n": "weight"}},
        {"counters": {"n": "any digits"}},
        {"leaderboards": {"n": "status"}},
    ],
)
def test_options_that_do_not_fit_a_table_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="view orders: "):
        CacheOptions(**options).check("orders", SCHEMA)


def test_options_need_a_view_that_lives_in_the_cache() -> None:
    shop = source("shop", tables=["orders"])

    with pytest.raises(DeclarationError):
        mirror("orders", shop.orders, to=["table"], cache=CacheOptions())


def test_two_rows_share_a_name_only_if_they_share_its_values() -> None:
    pattern = NameTemplate.parse("a:{status}:{id}")
    rows = [{"status": "x:y", "id": 1}, {"status": "x\\", "id": "y:1"}, {"status": "x", "id": "y"}]

    names = [expanded(pattern, row) for row in rows]

    assert ["a:x\\:y:1", "a:x\\\\:y\\:1", "a:x:y"] == names
    assert expanded(pattern, {"status": None, "id": 1}) is None


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (ColumnKind.INTEGER, -7, Decimal(-7)),
        (ColumnKind.NUMERIC, "12.50", Decimal("12.5")),
        (ColumnKind.NUMERIC, "NaN", None),
        (ColumnKind.FLOAT, 0.1, Decimal("0.1")),
        (ColumnKind.FLOAT, "Infinity", Decimal("Infinity")),
        (ColumnKind.TIMESTAMP, "1969-12-31T23:59:59.999999", Decimal(-1)),
        (ColumnKind.TIMESTAMPTZ, "1970-01-01T00:00:01.000000Z", Decimal(1_000_000)),
    ],
)
def test_a_value_is_ranked_by_the_number_that_it_is(
    kind: ColumnKind, value: str | float, expected: Decimal | None
) -> None:
    assert expected == number(Column("c", kind, ""), value)
