"""Windows beside earlier ones, as they are declared, and what cannot be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from projections.definition.registry import load
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from pathlib import Path

    from projections.definition.views import DerivedView

BEFORE = """
from headwater import Calendar, Tumbling, source, view

shop = source("shop", tables=["orders"])
orders = view.mirror("orders", shop.orders)
minute = Tumbling("at", "1 minute")
minutes = view.aggregate("minutes", orders, by=["region"], window=minute, count="n")
regions = view.aggregate("regions", orders, by=["region"], count="n")
"""


def declared(folder: Path, said: str) -> DerivedView:
    path = folder / "views.py"
    path.write_text(f'{BEFORE}view.lagged("w", {said})\n', encoding="utf-8")
    return load(path).derived["w"]


def test_windows_stand_beside_those_of_their_group_and_have_their_keys(tmp_path: Path) -> None:
    view = declared(tmp_path, 'minutes, "7 days", {"a_week_ago": "n"}')

    assert ("region", "window_start") == view.keys
    assert ("minutes",) == view.inputs
    assert view.sql == (
        "SELECT this.*, before.`n` AS `a_week_ago` FROM minutes this LEFT JOIN minutes before"
        " ON before.`window_start` = this.`window_start` - INTERVAL 604800000000 MICROSECONDS"
        " AND before.`region` <=> this.`region`"
    )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('regions, "7 days", {"before": "n"}', "regions has no windows"),
        ('orders, "7 days", {"before": "n"}', "orders has no windows"),
        ('minutes, "7 days", {}', "no columns of the earlier window"),
        ('minutes, "a week", {"before": "n"}', "invalid duration"),
        ('minutes, "7 days", {"region": "n"}', "view w has two columns named region"),
        ('minutes, "7 days", {"window_end": "n"}', "view w has two columns named window_end"),
        ('minutes, "7 days", {"before": "n"}, zone="Nowhere"', "unknown time zone"),
    ],
)
def test_what_has_no_answer_is_refused_with_the_reason(tmp_path: Path, said: str, why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        declared(tmp_path, said)
