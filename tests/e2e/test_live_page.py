"""GlobalShop's live page: what each panel shows is what plain SQL over the shop's tables says."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from headwater import query
from headwater.demo.demo import run_demo
from headwater.demo.globalshop import GlobalShopLive
from headwater.demo.options import DemoOptions
from headwater.panels.answers import Answers
from projections.declaration import load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

BY_PLAIN_SQL = {
    "Orders per minute": """
        WITH m AS (SELECT date_trunc('minute', placed_at) AS at, count(*) AS n FROM orders
                    WHERE status <> 'cancelled' GROUP BY 1)
        SELECT at, n FROM m WHERE at < (SELECT max(at) FROM m)
           AND at > (SELECT max(at) FROM m) - INTERVAL '1 hour' ORDER BY at
    """,
    "Revenue by region": """
        SELECT CASE WHEN preferences LIKE '%"language": "de"%' THEN 'Europe'
                    WHEN preferences LIKE '%"language": "ja"%' THEN 'Japan'
                    WHEN preferences LIKE '%"language": "pt-BR"%' THEN 'Brazil'
                    ELSE 'elsewhere' END AS region, sum(total)
          FROM orders JOIN customers ON customers.id = customer_id
         WHERE status <> 'cancelled' GROUP BY 1 ORDER BY 2 DESC
    """,
    "Click-through rate": """
        WITH s AS (SELECT date_trunc('minute', searched_at) AS at, id FROM searches),
             m AS (SELECT at, 100.0 * count(DISTINCT c.search_id) / count(DISTINCT s.id) AS share
                     FROM s LEFT JOIN clicks c ON c.search_id = s.id GROUP BY at)
        SELECT at, share FROM m WHERE at < (SELECT max(at) FROM m) ORDER BY at
    """,
    "Low stock": """
        SELECT p.name, p.sku, sum(on_hand) FROM products p JOIN inventory i ON i.sku = p.sku
         WHERE active GROUP BY p.name, p.sku HAVING sum(on_hand) < 300 ORDER BY 3, 2
    """,
}

RARE = {"Low stock"}
"""What a short run may not come to: a new product has to be launched, and be sold."""


def test_the_live_page_shows_what_the_shop_has_done(tmp_path: Path) -> None:
    home = tmp_path / ".headwater"
    # long enough for a whole minute between two that are not
    options = DemoOptions("globalshop-live", seconds=75.0, rate=60.0, scale=0.2, home=home)

    result = run_demo(options, Console(file=io.StringIO()))

    assert result.verified
    declared = load(GlobalShopLive.settings_file.parent / "views.py").dashboard
    assert declared is not None
    shown = json.loads(Answers(declared, home / "tables", "shop").newest().body)
    panels = {panel["title"]: panel for panel in shown["panels"]}
    assert [] == [title for title, panel in panels.items() if "error" in panel]
    for title, sql in BY_PLAIN_SQL.items():
        expected = [plain(row) for row in query.run(sql, home / "tables").to_pylist()]
        assert expected or title in RARE, title
        assert expected == [[rounded(each) for each in row] for row in panels[title]["rows"]], title
    assert panels["From order to payment"]["rows"]


def plain(row: dict[str, Any]) -> list[Any]:
    return [rounded(each) for each in row.values()]


def rounded(value: Any) -> Any:
    """As JSON has it; two engines divide with another last digit."""
    if isinstance(value, float | Decimal):
        return round(float(value), 6)
    return value.isoformat() if hasattr(value, "isoformat") else value
