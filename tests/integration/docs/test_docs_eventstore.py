"""The pages of the event store are run as they stand."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
import structlog

pytestmark = pytest.mark.integration

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize(
    ("page", "fewest"), [("eventstore.md", 50), ("uniqueness.md", 15), ("saved-states.md", 10)]
)
def test_every_example_of_a_page_does_what_it_shows(store_dsn, page, fewest):
    text = (DOCS / page).read_text()
    examples = "\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL))
    names = {"DSN": store_dsn, "__name__": "guide"}
    found = doctest.DocTestParser().get_doctest(examples, names, page, str(DOCS / page), 0)
    told: list[str] = []
    flags = doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS | doctest.FAIL_FAST
    with structlog.testing.capture_logs():
        done = doctest.DocTestRunner(optionflags=flags, verbose=False).run(
            found, out=told.append, clear_globs=False
        )
    for name in ("store", "keyring"):
        if name in found.globs:
            found.globs[name].close()

    assert [] == told
    assert len(found.examples) == done.attempted > fewest
