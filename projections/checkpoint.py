"""Where a query of the job stands, read off its checkpoint; the job need not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from pathlib import Path

    from projections.frontier import Offsets


def positions(home: Path, source: str) -> dict[str, Offsets]:
    """Returns what every query of a source wants next, by the query's name.

    Args:
        home: Folder of all state.
        source: Name of the source.
    """
    folder = home / "checkpoints" / source
    queries = sorted(path for path in folder.iterdir()) if folder.is_dir() else []
    found = {f"query {path.name}": committed(path) for path in queries}
    return {name: offsets for name, offsets in found.items() if offsets}


def committed(checkpoint: Path) -> Offsets:
    """Returns the offset after the last record of each partition that a query has finished.

    Args:
        checkpoint: Folder of the query's checkpoint, see `JobSpec.checkpoint`.

    Returns:
        Offsets by topic and partition; empty before the first batch.
    """
    done = _numbers(checkpoint / "commits")
    if not done:
        return {}
    lines = (checkpoint / "offsets" / str(done[-1])).read_text("utf-8").splitlines()
    offsets: Offsets = {}
    for line in lines[2:]:  # after a version and a note of Spark's own
        for topic, partitions in orjson.loads(line).items():
            offsets |= {(topic, int(number)): int(at) for number, at in partitions.items()}
    return offsets


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
