"""Dashboards: panels that show the result of a query, declared beside the views.

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
"""Most panels of one dashboard: each query runs at every new boundary."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A query, and how its result is drawn.

    Attributes:
        title: Heading, unique in the dashboard.
        sql: A SELECT over the views' tables; see `headwater query`.
        unit: Unit of the values: `"EUR"`, `"s"`, `"%"`. Empty for counts.
        note: A short text below the panel.
    """

    kind: ClassVar[str] = "rows"

    title: str
    sql: str
    unit: str = ""
    note: str = ""


class Line(Panel):
    """A line chart: the first column is the x axis, a time or number; each other one is a line."""

    kind = "line"


class Bars(Panel):
    """A bar chart: the first column names the bars, the second has their lengths."""

    kind = "bars"


class Number(Panel):
    """A number: the first column of the first row; a second column is the value to compare with."""

    kind = "number"


class Rows(Panel):
    """A table of the result."""

    kind = "rows"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The title and the panels of a dashboard."""

    title: str
    panels: tuple[Panel, ...]
