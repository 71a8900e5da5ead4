"""What is said of an alert, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from headwater import Handler, Topic, Webhook, alert, source, view
from projections.definition.registry import load
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from pathlib import Path

shop = source("shop", tables=["orders"])
orders = view.mirror("orders", shop.orders)
TO = (Topic("alerts"),)


def test_an_alert_says_what_is_looked_at_and_how_long_is_waited() -> None:
    found = alert("late", orders, TO, where=" total > 5 ", hold="2 minutes", quiet="1 hour")

    assert ("late", "orders", "total > 5") == (found.name, found.view, found.where)
    assert (timedelta(minutes=2), timedelta(hours=1)) == (found.hold, found.quiet)


def test_channels_are_named_without_what_may_be_secret() -> None:
    hook = Webhook("https://chat.example.org/hooks/T0/B0/very-secret", "chat")

    assert hook.name.startswith("webhook chat.example.org ")
    assert "very-secret" not in hook.name + repr(hook)
    assert f"handler {__name__}.test_channels_are_named_without_what_may_be_secret" == (
        Handler(test_channels_are_named_without_what_may_be_secret).name
    )


def test_what_does_not_fit_is_refused() -> None:
    cached = view.mirror("cached", shop.orders, to=["cache"])
    history = view.mirror("history", shop.orders, scd=2)
    for of, to, said in (
        (cached, TO, "has no table"),
        (history, TO, "many rows for each key"),
        (orders, (), "has no channel"),
        (orders, ["https://example.org"], "has no channel"),
        (orders, (Topic("a"), Topic("a")), "one channel twice"),
    ):
        with pytest.raises(DeclarationError, match=said):
            alert("late", of, to)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="invalid duration"):
        alert("late", orders, TO, hold="soon")
    strange = (
        "ftp://example.org",
        "example.org",
        "https://me@example.org/x",
        "https://",
        "http://a b",
    )
    for url in strange:
        with pytest.raises(DeclarationError, match="URL of a webhook"):
            Webhook(url, "chat")
    with pytest.raises(DeclarationError, match="takes the name of a secret"):
        Webhook("https://example.org", "whsec_A secret itself")
    with pytest.raises(DeclarationError, match="topic"):
        Topic("no topic")


def test_a_module_declares_each_alert_once(tmp_path: Path) -> None:
    module = tmp_path / "views.py"
    said = (
        "from headwater import Topic, alert, source, view\n"
        "orders = view.mirror('orders', source('shop', tables=['orders']).orders)\n"
        "alert('late', orders, [Topic('alerts')])\n"
    )
    module.write_text(said)
    assert ["late"] == list(load(module).alerts)
    module.write_text(f"{said}alert('late', orders, [Topic('others')], where='true')\n")
    with pytest.raises(DeclarationError, match="two alerts are named late"):
        load(module)
