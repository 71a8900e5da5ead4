"""Columns of a merge, as SQL: the engine's own shorthand for all of them fails on a backtick."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def quoted(name: str) -> str:
    """Returns a column name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def assignments(names: Iterable[str]) -> dict[str, str]:
    """Returns the assignments that give a stored row the values of a row `s`."""
    return {quoted(name): f"s.{quoted(name)}" for name in names}
