"""The word with which alerts are declared: `alert("fraud", suspects, to=[...])`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from projections.definition.alert import Alert, Channel, Recent
from projections.definition.operators.windows import duration
from projections.definition.registry import checked, collected
from projections.definition.views import DerivedView, EventsView, MirrorView
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    Watched = MirrorView | EventsView | DerivedView


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
    """Declares that somebody is told of rows of a view, each once until it has recovered.

    Args:
        name: Of the alert.
        of: The view: one that lives in the tables, with a row for each key.
        to: Who is told: any of `Webhook`, `Topic`, `Handler`.
        where: A condition on its rows, in the SQL of `headwater query`. It may ask for `now()`,
            such as `due_at < now()`; left out, every row meets it, as every match of a pattern.
        hold: How long a row must have met the condition before anybody is told: `"5 minutes"`.
        quiet: Hold-down: how long it must not have met it before it counts as recovered. What
            comes and goes in between is told once.
        recent: Leaves out rows that are older, such as matches of a pattern, of which there are
            ever more: `Recent("match_end", "7 days")`. One that becomes too old is forgotten, and
            nobody is told that it has recovered.

    Raises:
        DeclarationError: It does not fit.
    """
    channels = tuple(to)
    if "table" not in of.to:
        raise DeclarationError(
            f"alert {name}: view {of.name} has no table to be looked at",
            hint='to=["table", ...] of the view',
        )
    if isinstance(of, MirrorView) and of.history is not None:
        raise DeclarationError(
            f"alert {name}: view {of.name} has many rows for each key",
            hint="a view of the same table without history, or made from this one",
        )
    if not channels or not all(isinstance(each, Channel) for each in channels):
        raise DeclarationError(
            f"alert {name} tells nobody",
            hint='to=[Webhook(url, secret="fraud")], Topic("alerts") or Handler(function)',
        )
    names = [each.name for each in channels]
    if len(set(names)) < len(names):
        raise DeclarationError(f"alert {name} tells one channel twice", detail=", ".join(names))
    if recent is not None and not isinstance(recent, Recent):
        raise DeclarationError(
            f"alert {name} does not say what is recent", hint='recent=Recent("match_end", "7 days")'
        )
    least = timedelta(0)
    lengths = duration(hold, least), duration(quiet, least)
    declared = Alert(checked(name, "alert"), of.name, where.strip(), *lengths, channels, recent)
    known = collected().alerts
    if known.setdefault(declared.name, declared) is not declared:
        raise DeclarationError(f"two alerts are named {name}")
    return declared
