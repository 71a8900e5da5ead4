"""In which order the workers of a distributed run take the files.

Each worker takes whole files. The longest come first: one that came last would keep one worker busy
while the others have nothing left. How long each took is in ``durations.json``, which
``--record-durations`` writes anew.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(config.rootpath))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput") and DURATIONS.exists():
        seconds = json.loads(DURATIONS.read_bytes())
        items.sort(key=lambda item: -expected_s(item.nodeid, seconds))


def expected_s(nodeid: str, seconds: Mapping[str, float]) -> float:
    """How long the file of a test is expected to take, s."""
    return seconds.get(nodeid.partition("::")[0], UNKNOWN_S)


class Durations:
    """Sums up what the tests of each file took, fixtures included.

    Args:
        root: The folder that test ids are relative to.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keeps the files that did not run, if they are still there."""
        before = json.loads(DURATIONS.read_bytes()) if DURATIONS.exists() else {}
        known = {file: s for file, s in before.items() if (self._root / file).exists()}
        found = known | {file: round(s, 1) for file, s in self._seconds.items()}
        rows = sorted(found.items(), key=lambda row: (-row[1], row[0]))
        DURATIONS.write_text(json.dumps(dict(rows), indent=1) + "\n")
