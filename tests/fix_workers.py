"""Which files a run takes, and in which order its workers take them.

Each worker takes whole files. The longest come first: one that came last would keep one worker busy
while the others have nothing left. How long each took is in ``durations.json``, which
``--record-durations`` writes anew. ``--shard=2/6`` takes the second of six parts of about the same
length.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pytest

DURATIONS: Final = Path(__file__).with_name("durations.json")
UNKNOWN_S: Final = 20.0
"""Taken for a file that no recorded run had."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"write how long each file took to {DURATIONS.name}, which orders later runs",
    )
    parser.addoption(
        "--shard", metavar="K/N", type=shard, default=(1, 1), help="take the K-th of N parts"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(config.rootpath))


def shard(text: str) -> tuple[int, int]:
    """Reads ``K/N``.

    Raises:
        ArgumentTypeError: It is not that, or there is no such part.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    part, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError(f"{text} is no part such as 2/6")
    return part, parts


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seconds = json.loads(DURATIONS.read_bytes()) if DURATIONS.exists() else {}
    part, parts = config.getoption("--shard")
    if parts > 1:
        files = parts_of({_file(item.nodeid) for item in items}, seconds, parts)[part - 1]
        left = [item for item in items if _file(item.nodeid) not in files]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if _file(item.nodeid) in files]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -seconds.get(_file(item.nodeid), UNKNOWN_S))


def parts_of(files: Iterable[str], seconds: Mapping[str, float], parts: int) -> list[set[str]]:
    """Deals files out to parts, the longest first, each to the part that has least."""
    found: list[set[str]] = [set() for _ in range(parts)]
    total_s = [0.0] * parts
    for file in sorted(files, key=lambda file: (-seconds.get(file, UNKNOWN_S), file)):
        least = total_s.index(min(total_s))
        found[least].add(file)
        total_s[least] += seconds.get(file, UNKNOWN_S)
    return found


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Durations:
    """Sums up what the tests of each file took, fixtures included.

    Args:
        root: The folder that test ids are relative to.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[_file(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keeps the files that did not run, if they are still there."""
        before = json.loads(DURATIONS.read_bytes()) if DURATIONS.exists() else {}
        known = {file: s for file, s in before.items() if (self._root / file).exists()}
        found = known | {file: round(s, 1) for file, s in self._seconds.items()}
        rows = sorted(found.items(), key=lambda row: (-row[1], row[0]))
        DURATIONS.write_text(json.dumps(dict(rows), indent=1) + "\n")
