"""The guide to consumers is run as it stands."""

from __future__ import annotations

import doctest
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import structlog

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured

pytestmark = pytest.mark.integration

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "consumer.md"


def in_background(function: Callable[..., object], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def wait_for(what: Callable[[], object]) -> None:
    wait_until(what)  # and shows nothing, so that the page need not


def test_every_example_of_the_guide_does_what_it_shows(
    database: str, capture: Callable[..., Captured]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, total numeric(12,2), status text)"
        )
    captured = capture("public.orders")
    examples = "\n".join(re.findall(r"```pycon\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    names = {
        "KAFKA": captured.spec.kafka_bootstrap,
        "DSN": database,
        "SOURCE": captured.spec.name,
        "sql": captured.execute,
        "in_background": in_background,
        "wait_for": wait_for,
    }
    found = doctest.DocTestParser().get_doctest(examples, names, "consumer.md", str(GUIDE), 0)
    told: list[str] = []
    with structlog.testing.capture_logs() as logs:
        done = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST, verbose=False).run(
            found, out=told.append, clear_globs=False
        )
    if told:
        found.globs["changes"].close()

    assert [] == told, logs
    assert len(found.examples) == done.attempted > 40
