"""Counts lines in unit tests only, and not in properties nor in tests of our sources' text.

Counting doubles the time of what is written in Python.

pytest-cov itself leaves out no more than the bodies of tests that are marked. Here what the
fixtures of other tests start and wait for is left out too, and the process that only deals the
tests out to its workers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT: Final = Path(__file__).with_name("unit")
HOUSE: Final = UNIT / "house"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Counts nothing in the controller: all tests run in its workers."""
    counter = _counter(session.config)
    if counter is not None and session.config.getoption("numprocesses", None):
        counter.pause()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        properties = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if properties or item.path.is_relative_to(HOUSE):
            item.add_marker(pytest.mark.no_cover)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Runs what is no unit test, from its setup to its teardown, without counting."""
    counter = None if item.path.is_relative_to(UNIT) else _counter(item.config)
    if counter is None:
        return (yield)
    counter.pause()
    try:
        return (yield)
    finally:
        counter.resume()


def _counter(config: pytest.Config) -> Any:
    """What counts lines in this process, if the run counts any."""
    plugin = config.pluginmanager.get_plugin("_cov")
    return None if plugin is None else plugin.cov_controller
