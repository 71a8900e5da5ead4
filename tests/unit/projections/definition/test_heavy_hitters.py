"""The most frequent values, as they are declared, and what cannot be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from projections.definition.registry import load
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from pathlib import Path

    from projections.definition.views import DerivedView

BEFORE = """
from headwater import Late, Session, Sliding, Tumbling, source, view

shop = source("shop", tables=["orders"])
orders = view.mirror("orders", shop.orders)
minute = Tumbling("at", "1 minute")
"""


def declared(folder: Path, said: str) -> DerivedView:
    path = folder / "views.py"
    path.write_text(f'{BEFORE}view.frequent("v", orders, {said})\n', encoding="utf-8")
    return load(path).derived["v"]


def test_each_group_has_a_row_and_each_window_of_it(tmp_path: Path) -> None:
    plain = declared(tmp_path, '"product", by=["region"], where="amount > 0"')
    windowed = declared(tmp_path, '"product", 3, ["region"], window=minute')

    assert ("region",) == plain.keys
    assert ("region", "window_start") == windowed.keys
    assert ("orders",) == plain.inputs == windowed.inputs
    assert plain.sql == (
        "SELECT `region`, transform(slice(array_sort(collect_list(struct(-_headwater_rows AS less,"
        " `product` AS value))), 1, 10), each -> struct(each.value AS `product`, -each.less AS"
        " `rows`)) AS `values` FROM (SELECT `region`, `product`, count(*) AS `_headwater_rows`"
        " FROM orders WHERE (`product` IS NOT NULL) AND (amount > 0) GROUP BY `region`, `product`)"
        " GROUP BY `region`"
    )


def test_what_comes_late_does_not_count(tmp_path: Path) -> None:
    late = declared(tmp_path, '"product", window=minute, late=Late("came", after="5 minutes")')

    assert ("window_start",) == late.keys
    assert late.sql is not None
    assert "WHERE NOT _late" in late.sql


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('"product"', "has no groups"),
        ('"product", 0, ["region"]', "number of values: 0"),
        ('"product", 10_001, ["region"]', "number of values: 10001"),
        ('"region", by=["region"]', "view v has two columns with one name"),
        ('"product", by=["values"]', "view v has two columns with one name"),
        ('"product", by=["window_end"], window=minute', "view v has two columns with one name"),
        ('"product", window=Session("at", "1 minute")', "Session windows would differ"),
        ('"product", by=["a"], window=Sliding("at", "1 minute")', "Sliding windows would differ"),
        ('"product", by=["a"], late=Late("came")', "late needs a window"),
        ('"product", window=minute, late=Late("came", count="n")', "late needs a window"),
    ],
)
def test_what_has_no_answer_is_refused_with_the_reason(tmp_path: Path, said: str, why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        declared(tmp_path, said)
