"""The page of reactors is run as it stands."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from eventstore.reactor.control import Reactors
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reactors.md"


def wait_for(what: Callable[[], object]) -> None:
    wait_until(what)  # and shows nothing, so that the page need not


def test_every_example_of_the_page_does_what_it_shows(store_dsn, receiver):
    blocks = re.findall(r"```pycon\n(.*?)```", PAGE.read_text(), re.DOTALL)
    told: list[str] = []
    with Reactors(store_dsn) as reactors, structlog.testing.capture_logs():
        names = {
            "DSN": store_dsn,
            "RECEIVER": receiver.url,
            "received": receiver.documents_in_order,
            "invoices": [],
            "reactors": reactors,
            "wait_for": wait_for,
            "__name__": "page",
        }
        found = doctest.DocTestParser().get_doctest(
            "\n".join(blocks), names, "reactors.md", str(PAGE), 0
        )
        done = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST, verbose=False).run(
            found, out=told.append, clear_globs=False
        )
        if not told:
            found.globs["store"].close()

    assert [] == told
    assert len(found.examples) == done.attempted > 20
