"""Dashboards: what a page shows of the views, declared beside them.

    dashboard("GlobalShop", [
        Line("Orders per minute", "SELECT window_start, orders FROM orders_per_minute …"),
        Number("Paid today", "SELECT sum(total) FROM orders WHERE …", unit="EUR"),
    ])

A panel is a question in the SQL of `headwater query`, and how its answer is drawn. All panels of a
dashboard are answered from the same transaction boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

PANELS_MAX: Final = 40
"""Panels of one dashboard: each is answered anew at every boundary."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A question, and how its answer is drawn.

    Attributes:
        title: Stands above it; tells it from the others.
        sql: A SELECT over the views' tables; see `headwater query`.
        unit: What values are in: `"EUR"`, `"s"`, `"%"`. Empty if they are counted.
        note: A few words below it.
    """

    kind: ClassVar[str] = "rows"

    title: str
    sql: str
    unit: str = ""
    note: str = ""


class Line(Panel):
    """The first column from left to right, a time or a number; each further one is a line."""

    kind = "line"


class Bars(Panel):
    """The first column names the bars, the second is their length."""

    kind = "bars"


class Number(Panel):
    """The first column of the first row; a second one is what it is compared with."""

    kind = "number"


class Rows(Panel):
    """A table as it is answered."""

    kind = "rows"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page."""

    title: str
    panels: tuple[Panel, ...]
