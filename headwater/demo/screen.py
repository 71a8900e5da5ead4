"""The screen of the running demo: a line for each step, and a live display of the traffic."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headwater.demo.report import STORE_NAMES, duration
from headwater.demo.result import STORES
from headwater.demo.traffic import Written

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console, RenderableType

    from headwater.demo.result import Freshness

_LINE_EVERY_S: Final = 5.0
_BAR_WIDTH: Final = 46


@dataclass(frozen=True, slots=True)
class TrafficProgress:
    """The traffic at one moment.

    Attributes:
        elapsed_s: Seconds since it began.
        seconds: Its duration.
        written: Commits so far.
        freshness: Freshness so far, by store.
        memory_mib: Resident memory of all processes.
        note: A further activity, such as a recovery.
    """

    elapsed_s: float
    seconds: float
    written: Written = field(default_factory=Written)
    freshness: Mapping[str, Freshness] = field(default_factory=dict)
    memory_mib: int = 0
    note: str = ""


class Screen:
    """Shows the progress on a console that is not stdout.

    A terminal shows a live display; other outputs get occasional lines.
    """

    def __init__(self, console: Console) -> None:
        self.lines: list[Text] = []
        self.began = time.monotonic()
        self._console = console
        self._live: Live | None = None
        self._line_due = 0.0

    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self.began

    def say(self, markup: str) -> None:
        """Prints a finished step with the elapsed time."""
        line = Text.from_markup(f"[dim]{self.elapsed_s():6.1f} s[/]  {markup}")
        self.lines.append(line)
        self._console.print(line, highlight=False)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Shows what the demo waits for."""
        with self._showing(Padding(Spinner("dots", Text(what, "dim")), (0, 0, 0, 10))):
            yield

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Shows the traffic that `update` reports."""
        with self._showing(Text("")):
            yield

    def update(self, moving: TrafficProgress) -> None:
        """Shows the traffic as it is now."""
        if self._live is not None:
            self._live.update(picture(moving))
        elif moving.elapsed_s >= self._line_due:
            self._line_due = moving.elapsed_s + _LINE_EVERY_S
            seen = ", ".join(
                f"{STORE_NAMES[store]} {duration(found.p50_ms)}"
                for store, found in moving.freshness.items()
                if found.samples
            )
            behind = f"; seen within (median): {seen}" if seen else ""
            note = f"; {moving.note}" if moving.note else ""
            self._console.print(
                f"{self.elapsed_s():6.1f} s  {moving.written.changes:,} row changes "
                f"in {moving.elapsed_s:.0f} of {moving.seconds:.0f} s{behind}{note}",
                highlight=False,
            )

    @contextmanager
    def _showing(self, picture: RenderableType) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(picture, console=self._console, transient=True, refresh_per_second=8) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None


def picture(moving: TrafficProgress) -> RenderableType:
    """Draws the traffic of one moment."""
    bar = ProgressBar(
        total=moving.seconds, completed=moving.elapsed_s, width=_BAR_WIDTH, complete_style="cyan"
    )
    left = Table.grid(padding=(0, 2))
    left.add_row(
        "traffic", bar, f"{min(moving.elapsed_s, moving.seconds):.0f} / {moving.seconds:.0f} s"
    )
    seen = Table.grid(padding=(0, 3))
    seen.add_row("", *[Text(STORE_NAMES[store], "dim") for store in reversed(STORES)], "")
    for label, pick in (("p50", "p50_ms"), ("p99", "p99_ms")):
        waits = [
            duration(getattr(moving.freshness[store], pick)) if store in moving.freshness else "-"
            for store in reversed(STORES)
        ]
        seen.add_row(
            Text(f"seen after, {label}", "dim"), *[Text(wait, justify="right") for wait in waits]
        )
    written = moving.written
    facts = (
        f"{written.changes:,} row changes, {written.transactions:,} transactions"
        + (f", {written.rolled_back:,} rolled back" if written.rolled_back else "")
        + (f"   {moving.memory_mib:,} MiB" if moving.memory_mib else "")
    )
    note = [Text(moving.note, "yellow")] if moving.note else []
    return Padding(Group(left, Text(facts), seen, *note), (1, 0, 0, 10))
