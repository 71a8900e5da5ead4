"""Loads every plugin beside it: a fixture that more than one test needs lives in ``fix_*.py``."""

from __future__ import annotations

from pathlib import Path

pytest_plugins = sorted(plugin.stem for plugin in Path(__file__).parent.glob("fix_*.py"))
