"""The word with which a project's page is declared: `dashboard("GlobalShop", [...])`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.definition.dashboard import PANELS_MAX, Dashboard, Panel
from projections.definition.registry import collected
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Iterable


def dashboard(title: str, panels: Iterable[Panel]) -> Dashboard:
    """Declares the project's dashboard, which `headwater dashboard` serves.

    Args:
        title: Its heading.
        panels: What it shows, in order.

    Raises:
        DeclarationError: There is another, or a panel does not fit.
    """
    shown = tuple(panels)
    if not title.strip() or not 1 <= len(shown) <= PANELS_MAX:
        raise DeclarationError(
            "a dashboard has a title and panels",
            detail=f"{title[:80]!r} with {len(shown)} panels",
            hint=f"one to {PANELS_MAX} of Line(...), Bars(...), Number(...) and Rows(...)",
        )
    for panel in shown:
        if not isinstance(panel, Panel) or not panel.title.strip() or not panel.sql.strip():
            raise DeclarationError(
                "a panel is a title and a SELECT", hint='Number("Orders", "SELECT count(*) FROM …")'
            )
    titles = [panel.title for panel in shown]
    if twice := sorted({each for each in titles if titles.count(each) > 1}):
        raise DeclarationError(f"two panels are called {twice[0]}")
    known = collected()
    if known.dashboard is not None:
        raise DeclarationError(
            "a project has one dashboard", detail=f"{known.dashboard.title}, {title}"
        )
    known.dashboard = Dashboard(title, shown)
    return known.dashboard
