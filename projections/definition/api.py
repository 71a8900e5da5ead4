"""Functions that declare views: `view.mirror(...)`, `view.sql(...)`, `@view(...)`.

`alert("fraud", suspects, to=[...])` declares an alert.

`dashboard("GlobalShop", [...])` declares a project's dashboard.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from projections.definition import mirror as declared
from projections.definition.alert import Alert, Channel, Recent
from projections.definition.arguments import declaring
from projections.definition.dashboard import PANELS_MAX, Dashboard, Panel
from projections.definition.derived import clock_skew, declare, heavy_hitters
from projections.definition.derived import lagged as derived_lagged
from projections.definition.derived import percolate as derived_percolate
from projections.definition.operators.measures import Approximate, Percentile, Top
from projections.definition.operators.windows import duration
from projections.definition.registry import checked, collected
from projections.definition.views import DerivedView, EventsView, MirrorView
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Watched = MirrorView | EventsView | DerivedView


class ViewNamespace:
    """Declares views; called itself, it is the decorator `derived.declare.function`."""

    mirror = staticmethod(declared.mirror)
    events = staticmethod(declared.events)
    sql = staticmethod(declare.sql)
    document = staticmethod(declare.sql)
    aggregate = staticmethod(declare.aggregate)
    late = staticmethod(declare.late)
    lagged = staticmethod(derived_lagged.lagged)
    frequent = staticmethod(heavy_hitters.frequent)
    untimed = staticmethod(clock_skew.untimed)
    clocked = staticmethod(clock_skew.clocked)
    clocks = staticmethod(clock_skew.clocks)
    pattern = staticmethod(declare.pattern)
    percolate = staticmethod(derived_percolate.percolate)
    unreadable_queries = staticmethod(derived_percolate.unreadable_queries)
    Top = Top
    Percentile = Percentile
    Approximate = Approximate

    def __call__(self, *words: Any, **options: Any) -> Callable[[Callable[..., Any]], DerivedView]:
        """Declares a view by a function of DataFrames; see `derived.declare.function`."""
        return declare.function(*words, **options)


view: Final = ViewNamespace()


@declaring
def alert(  # noqa: PLR0913  # each is a word of its own
    name: str,
    of: Watched,
    to: Iterable[Channel],
    *,
    where: str = "",
    hold: str = "0 seconds",
    quiet: str = "0 seconds",
    recent: Recent | None = None,
) -> Alert:
    """Declares an alert on rows of a view: one message per row until the row recovers.

    Args:
        name: Name of the alert.
        of: The view, which must have a table and a key.
        to: Channels: any of `Webhook`, `Topic`, `Handler`.
        where: Condition on a row, in the SQL of `headwater query`, such as `due_at < now()`. If
            omitted, every row meets it, such as every match of a pattern.
        hold: How long a row must meet the condition before it is reported: `"5 minutes"`.
        quiet: How long a row must not meet the condition before it counts as recovered. A shorter
            interruption does not end the alert.
        recent: Ignores older rows, such as old matches of a pattern: `Recent("match_end", "7
            days")`. A row that becomes too old is forgotten without a recovery message.

    Raises:
        DeclarationError: An argument is invalid.
    """
    channels = tuple(to)
    if "table" not in of.to:
        raise DeclarationError(
            f"alert {name}: view {of.name} has no table",
            hint='add to=["table", ...] to the view',
        )
    if isinstance(of, MirrorView) and of.history is not None:
        raise DeclarationError(
            f"alert {name}: view {of.name} has many rows for each key",
            hint="use a mirror of the table, or a view derived from this one",
        )
    if not channels or not all(isinstance(each, Channel) for each in channels):
        raise DeclarationError(
            f"alert {name} has no channel",
            hint='to=[Webhook(url, secret="fraud")], Topic("alerts") or Handler(function)',
        )
    names = [each.name for each in channels]
    if len(set(names)) < len(names):
        raise DeclarationError(f"alert {name} has one channel twice", detail=", ".join(names))
    if recent is not None and not isinstance(recent, Recent):
        raise DeclarationError(
            f"alert {name} has an invalid recent", hint='recent=Recent("match_end", "7 days")'
        )
    least = timedelta(0)
    lengths = duration(hold, least), duration(quiet, least)
    declared = Alert(checked(name, "alert"), of.name, where.strip(), *lengths, channels, recent)
    known = collected().alerts
    if known.setdefault(declared.name, declared) is not declared:
        raise DeclarationError(f"two alerts are named {name}")
    return declared


@declaring
def dashboard(title: str, panels: Iterable[Panel]) -> Dashboard:
    """Declares the project's dashboard, which `headwater dashboard` serves.

    Raises:
        DeclarationError: The project already has a dashboard, or a panel is invalid.
    """
    listed = tuple(panels)
    if not title.strip() or not 1 <= len(listed) <= PANELS_MAX:
        raise DeclarationError(
            "a dashboard needs a title and panels",
            detail=f"{title[:80]!r} with {len(listed)} panels",
            hint=f"one to {PANELS_MAX} of Line(...), Bars(...), Number(...) and Rows(...)",
        )
    for panel in listed:
        if not isinstance(panel, Panel) or not panel.title.strip() or not panel.sql.strip():
            raise DeclarationError(
                "a panel needs a title and a SELECT",
                hint='Number("Orders", "SELECT count(*) FROM …")',
            )
    titles = [panel.title for panel in listed]
    if twice := sorted({each for each in titles if titles.count(each) > 1}):
        raise DeclarationError(f"two panels are called {twice[0]}")
    known = collected()
    if known.dashboard is not None:
        raise DeclarationError(
            "a project has one dashboard", detail=f"{known.dashboard.title}, {title}"
        )
    known.dashboard = Dashboard(title, listed)
    return known.dashboard
