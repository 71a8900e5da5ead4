"""Loads every plugin beside it: a fixture that more than one test needs lives in ``fix_*.py``."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that:
# tests that send it must find it as a person at a terminal does.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = sorted(f"tests.{plugin.stem}" for plugin in Path(__file__).parent.glob("fix_*.py"))
pytest.register_assert_rewrite(*pytest_plugins)  # before one of them imports another


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Counts lines in unit tests only, and not in properties: that doubles their time."""
    unit = Path(__file__).with_name("unit")
    for item in items:
        properties = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if properties or not item.path.is_relative_to(unit):
            item.add_marker(pytest.mark.no_cover)
