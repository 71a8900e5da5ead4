"""The page of alerts says what is so: what it declares is declared, and what it shows comes out."""

from __future__ import annotations

import doctest
import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path

from projections.definition.alert import Message
from projections.definition.registry import load

PAGE = Path(__file__).parents[3] / "docs" / "alerts.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_what_the_page_declares_is_declared(tmp_path: Path) -> None:
    declared, _ = blocks("python")
    module = tmp_path / "views.py"
    module.write_text(declared)

    alerts = load(module).alerts

    assert {"fraud", "overdue", "busy"} == alerts.keys()
    (settings,) = blocks("toml")
    secrets = tomllib.loads(settings)["alerts"]["secrets"]
    named = {getattr(to, "secret", None) for each in alerts.values() for to in each.to} - {None}
    assert secrets.keys() == named


def test_a_message_is_what_the_page_shows() -> None:
    (shown,) = blocks("json")
    assert [each.name for each in fields(Message)] == list(json.loads(shown))


def test_the_receiver_of_the_page_takes_a_message_once() -> None:
    _, receiver = blocks("python")
    names: dict[str, object] = {}
    exec(receiver, names)  # noqa: S102  # the page's own
    (session,) = blocks("pycon")
    test = doctest.DocTestParser().get_doctest(session, names, "alerts.md", str(PAGE), 0)
    found = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert (0, 5) == (found.failed, found.attempted)
