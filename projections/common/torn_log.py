"""Logs of Delta tables that are torn: what a power cut or a stray hand leaves of them.

The engines read a commit of no bytes as one that changed nothing, so rows would be missing in
silence; and what they say of other damage does not tell it from a disk that does not answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from projections.errors import TableTornError

if TYPE_CHECKING:
    from pathlib import Path


def refuse_torn(root: Path, view: str, *, every: bool = False) -> None:
    """Refuses the tables of a view whose log is torn.

    Args:
        root: Folder of the tables.
        view: The view.
        every: Whether every commit since the last checkpoint is read, not the newest alone.

    Raises:
        TableTornError: One is.
    """
    for name in (view, f"{view}.deleted"):
        found = torn(root / name, every=every)
        if found is not None:
            raise TableTornError(
                f"view {view}: the log of its table is torn",
                detail=f"{name}/_delta_log: {found}",
                hint=f"headwater down; move tables/{view} and tables/{view}.deleted away;"
                " headwater up reads the view's table anew",
            )


def torn(path: Path, *, every: bool = False) -> str | None:
    """Returns what is wrong with the log of a table; None if it is whole, or there is none."""
    log = path / "_delta_log"
    commits = {int(file.stem): file for file in log.glob("*.json") if file.stem.isdigit()}
    if not commits:
        return None
    checkpoints = (file.name.partition(".")[0] for file in log.glob("*.checkpoint*.parquet"))
    since = max((int(number) for number in checkpoints if number.isdigit()), default=-1) + 1
    newest = max(commits)
    for number in range(since, newest + 1):
        if number not in commits:
            return f"{number:020}.json is missing"
    for number in range(since if every else newest, newest + 1):
        if not _whole(commits[number].read_bytes()):
            return f"{number:020}.json cannot be read"
    return None


def _whole(commit: bytes) -> bool:
    lines = [line for line in commit.splitlines() if line.strip()]
    try:
        return bool(lines) and all(isinstance(orjson.loads(line), dict) for line in lines)
    except orjson.JSONDecodeError:
        return False
