"""The guide to the event store is run as it stands."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
import structlog

pytestmark = pytest.mark.integration

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "eventstore.md"


def test_every_example_of_the_guide_does_what_it_shows(store_dsn):
    text = GUIDE.read_text()
    examples = "\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL))
    names = {"DSN": store_dsn, "__name__": "guide"}
    found = doctest.DocTestParser().get_doctest(examples, names, "eventstore.md", str(GUIDE), 0)
    told: list[str] = []
    flags = doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS | doctest.FAIL_FAST
    with structlog.testing.capture_logs():
        done = doctest.DocTestRunner(optionflags=flags, verbose=False).run(
            found, out=told.append, clear_globs=False
        )
    found.globs["store"].close()
    found.globs["keyring"].close()

    assert [] == told
    assert len(found.examples) == done.attempted > 50
