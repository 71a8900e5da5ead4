"""Declarations from which no query could be made are refused where they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from projections.definition.registry import load
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
from headwater import Late, Pattern, Step, Tumbling, source, view
shop = source("shop", tables=["orders"])
orders = view.mirror("orders", shop.orders, keys=["id"])
minute = Tumbling("at", "1 minute")
two = Pattern([Step("a", "true"), Step("b", "{b}")], within="1 hour")
"""


def declared(folder: Path, text: str, b: str = "true") -> None:
    path = folder / "views.py"
    path.write_text(MODULE.replace("{b}", b) + text, encoding="utf-8")
    load(path)


@pytest.mark.parametrize(
    ("top", "why"),
    [
        ('("total", 3, ["id", "total"])', "the first rows by total would have two fields named"),
        ('("total", 3, ["id", "ID"])', "the first rows by total would have two fields named ID"),
        ('("total", 0, ["id"])', "the first rows by total must be one or more"),
    ],
)
def test_first_rows_that_no_row_can_have_are_refused(tmp_path: Path, top: str, why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        declared(tmp_path, f'view.aggregate("v", orders, by=["a"], top={{"t": view.Top{top}}})')


@pytest.mark.parametrize("keep", ['["id", "id"]', '["id", "Id"]', '["AT"]'])
def test_a_match_keeps_each_column_once(tmp_path: Path, keep: str) -> None:
    with pytest.raises(DeclarationError, match="the rows of view v would have two fields named"):
        declared(
            tmp_path, f'view.pattern("v", orders, by=["a"], time="t", pattern=two, keep={keep})'
        )


def test_a_frequent_value_is_not_named_as_its_number(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="the values of view v would have two fields named"):
        declared(tmp_path, 'view.frequent("v", orders, "rows", by=["a"])')


CONDITIONED = (
    'view.aggregate("v", orders, by=["a"], count="n", where={})',
    'view.aggregate("v", orders, window=minute, count="n", where={})',
    'view.late("v", orders, window=minute, late=Late("came"), where={})',
    'view.untimed("v", orders, window=minute, where={})',
    'view.frequent("v", orders, "a", window=minute, where={})',
    'view.pattern("v", orders, by=["a"], time="t", pattern=two, where={})',
)


@pytest.mark.parametrize("text", CONDITIONED)
def test_a_comment_does_not_hide_what_follows_a_condition(tmp_path: Path, text: str) -> None:
    with pytest.raises(DeclarationError, match="the condition of view v ends with a comment"):
        declared(tmp_path, text.format("'total > 3 -- dear ones'"))

    for where in ("total > 3 -- dear\n AND a = 'x'", "/* dear */ total > 3", "note <> '-- x'"):
        declared(tmp_path, text.format(repr(where)))


def test_a_comment_does_not_end_a_step(tmp_path: Path) -> None:
    pattern = 'view.pattern("v", orders, by=["a"], time="t", pattern=two)'
    with pytest.raises(DeclarationError, match="condition of step b of view v ends with a comment"):
        declared(tmp_path, pattern, "total > 3 -- dear")

    declared(tmp_path, pattern, "total > 3 /* dear */")
