"""Soak tests: long ones, which show together and by chance what others show one by one.

A test or module is one by the mark ``soak(minutes=…)``: about so long it keeps a worker. All of
them are too long for each change, so that ``--soak-minutes=N`` takes some, by the run's seed, and
the end of the run says which: in the long run changes are under all of them. Without it all run.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-minutes",
        type=float,
        default=None,
        help="take soak tests of this much time together, chosen by the seed of the order",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Soak(config), "headwater-soak")


def taken(minutes: Mapping[str, float], limit: float | None, seed: int) -> set[str]:
    """Chooses at random among all that still fit; everything without a limit."""
    names = sorted(minutes)
    if limit is None:
        return set(names)
    chosen: set[str] = set()
    for name in Random(seed).sample(names, len(names)):  # noqa: S311  # no secret
        if minutes[name] <= limit:
            chosen.add(name)
            limit -= minutes[name]
    return chosen


class Soak:
    """What of the soak tests a run takes, file by file."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._limit: float | None = config.getoption("--soak-minutes")
        self._taken: set[str] = set()
        self._left: set[str] = set()

    @pytest.hookimpl(trylast=True)  # once the order is made
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leaves out what is not taken, and has the longest begin first."""
        files: dict[str, list[pytest.Item]] = defaultdict(list)
        minutes: dict[str, float] = {}
        for item in items:
            if (mark := item.get_closest_marker("soak")) is not None:
                file = item.nodeid.partition("::")[0]
                files[file].append(item)
                minutes[file] = mark.kwargs["minutes"]
        self._taken = taken(minutes, self._limit, self._seed())
        self._left = minutes.keys() - self._taken
        left = [item for file in self._left for item in files[file]]
        if left:
            config.hook.pytest_deselected(items=left)
        first = sorted(self._taken, key=lambda file: (-minutes[file], file))  # as other workers do
        soak = [item for file in first for item in files[file]]
        among = {*left, *soak}
        items[:] = [*soak, *(item for item in items if item not in among)]

    def _seed(self) -> int:
        """That of the order of tests, known once pytest is configured, and the same in workers."""
        return int(self._config.getoption("randomly_seed", None) or 0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["soak"] = [sorted(self._taken), sorted(self._left)]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: pytest.Session) -> None:
        """Takes what a worker has found; all of them find the same."""
        chosen, left = getattr(node, "workeroutput", {}).get("soak", ((), ()))
        self._taken.update(chosen)
        self._left.update(left)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._left:
            return
        count = len(self._taken) + len(self._left)
        terminalreporter.section(f"soak: {len(self._taken)} of {count} files, seed {self._seed()}")
        for said, files in (("ran", self._taken), ("not this time", self._left)):
            for file in sorted(files):
                terminalreporter.line(f"{said}: {file}")
        terminalreporter.line("all of them: make soak")
