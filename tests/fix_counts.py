"""Says what ran in each folder, and refuses a run in which real components were never touched.

A green run that skipped its integration tests proves nothing, so the counts are always shown and
``--require-integration`` turns their absence into a failure.
"""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

REAL: Final = "integration"
_LEFT_OUT: Final = "left_out"
OUTCOMES: Final = ("passed", "failed", "skipped", "xfailed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-integration",
        action="store_true",
        help="fail unless integration tests ran and every collected test is accounted for",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker sees a part; its reports reach the whole
        config.pluginmanager.register(Counts(config), "headwater-counts")
    else:
        config.pluginmanager.register(LeftOut(config))


def promises(root: Path) -> dict[str, list[str]]:
    """Names of the tests that show each promise of the README."""
    file = root / "tests" / "promises.toml"
    return tomllib.loads(file.read_text()) if file.exists() else {}


class LeftOut:
    """Counts in a worker what the run's options leave out; every worker counts the same."""

    def __init__(self, config: pytest.Config) -> None:
        self._output: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]
        self._output[_LEFT_OUT] = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._output[_LEFT_OUT] += len(items)


class Counts:
    """Outcome of every test, by its folder under tests/."""

    def __init__(self, config: pytest.Config) -> None:
        self._required = config.getoption("--require-integration") and not config.option.collectonly
        self._config = config
        self._collected: set[str] = set()
        self._outcomes: dict[str, str] = {}
        self._left_out = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.update(item.nodeid for item in session.items)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._left_out += len(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._left_out = max(self._left_out, getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        self._collected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._outcomes[report.nodeid] = "failed"
            self._tell(report)
        elif report.skipped:
            outcome = "xfailed" if hasattr(report, "wasxfail") else "skipped"
            self._outcomes.setdefault(report.nodeid, outcome)
        elif report.when == "call":
            self._outcomes.setdefault(report.nodeid, "passed")

    def _tell(self, report: pytest.TestReport) -> None:
        """Says at once what failed: a run that is ended from outside never comes to its summary."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            said = report.longreprtext.strip().splitlines() or ["no message"]
            reporter.write("\n")  # after the letters of what has run so far
            reporter.line(f"FAILED {report.when} of {report.nodeid}: {said[-1]}", red=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        green = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if green and self._complaints():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        yield

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("what ran")
        for folder, counts in sorted(self._by_folder().items()):
            shown = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES[:3]]
            shown += [f"{counts['xfailed']} xfailed"] if counts["xfailed"] else []
            terminalreporter.line(f"{folder}: {', '.join(shown)}")
        if self._left_out:
            marks = self._config.option.markexpr
            terminalreporter.line(f"left out: {self._left_out} (-m {marks!r})")
        for complaint in self._complaints():
            terminalreporter.line(f"ERROR: {complaint}", red=True, bold=True)

    def _complaints(self) -> list[str]:
        if not self._required:
            return []
        counts = self._by_folder()
        complaints = []
        if counts[REAL]["passed"] + counts[REAL]["failed"] == 0:
            complaints.append("no integration test ran: nothing was shown on real components")
        complaints += [
            f"the promise «{promise}» was not shown: {name} did not pass"
            for promise, tests in promises(self._config.rootpath).items()
            for name in tests
            if not self._passed(name)
        ]
        if lost := sorted(self._collected - self._outcomes.keys()):
            complaints.append(f"{len(lost)} collected tests have no outcome, first {lost[0]}")
        return complaints

    def _passed(self, name: str) -> bool:
        """Whether all cases of a test that ran have passed, and there was one."""
        outcomes = {o for id_, o in self._outcomes.items() if id_.partition("[")[0] == name}
        return outcomes == {"passed"}

    def _by_folder(self) -> dict[str, Counter[str]]:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for nodeid, outcome in self._outcomes.items():
            counts[_folder(nodeid)][outcome] += 1
        return counts


def _folder(nodeid: str) -> str:
    top, _, rest = nodeid.partition("/")
    return rest.partition("/")[0] if top == "tests" and "/" in rest else "elsewhere"
