"""The demo's last screen: the comparison, the freshness and the resources."""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headwater.demo.result import STORES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from headwater.demo.result import DemoResult, Freshness, RebuildResult, StoreComparison

STORE_NAMES: Final = {"table": "Delta", "search": "OpenSearch", "cache": "Valkey"}
SCREEN_WIDTH: Final = 84
_SECOND_MS: Final = 1_000
_TEN_SECONDS_MS: Final = 10_000


_FONT_FACE: Final = re.compile(r"@font-face \{[^}]*\}\s*")


def report(result: DemoResult, *, unicode: bool = True) -> RenderableType:
    """Formats the result for a terminal; readable at 80 columns and without colours."""
    parts: list[RenderableType] = [
        _verdict(result, unicode=unicode),
        _views(result, unicode=unicode),
    ]
    if result.invariants:
        parts.append(_invariants(result, unicode=unicode))
    if result.freshness:
        parts.append(_freshness(result))
    parts.append(_facts(result))
    return Group(*(Padding(part, (0, 0, 1, 2)) for part in parts))


def save_screen(file: Path, lines: Sequence[Text], result: DemoResult) -> None:
    """Writes the screen as an SVG picture."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=SCREEN_WIDTH,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(Text("$ headwater demo" + _options(result), style="bold"))
    for line in lines:
        console.print(line)
    console.print()
    console.print(report(result))
    picture = console.export_svg(title="headwater demo")
    # the picture must not load fonts from the network
    file.write_text(_FONT_FACE.sub("", picture), encoding="utf-8")


def _verdict(result: DemoResult, *, unicode: bool) -> Text:
    count = len({view.view for view in result.views})
    stores = len({view.store for view in result.views})
    if result.verified:
        mark = "✓" if unicode else "OK"
        text = Text(f"{mark} {count} views in {stores} stores equal their source", "bold green")
    else:
        mark = "✗" if unicode else "NOT EQUAL:"
        text = Text(f"{mark} {'; '.join(_wrong(result))}", "bold red")
    rows = sum(view.rows for view in result.views)
    compared = f"{rows:,} rows compared one by one with the source as of {result.position}"
    return text.append("\n").append(compared, "default not bold dim")


def _wrong(result: DemoResult) -> Iterator[str]:
    """Returns the reasons why the result does not count as verified."""
    wrong = sum(not view.agrees for view in result.views)
    if not result.views:
        yield "nothing was compared"
    elif wrong:
        yield f"{wrong} of {len(result.views)} copies differ from their source"
    if any(not invariant.holds for invariant in result.invariants):
        yield "sums that must be equal are not"
    if result.rebuilt is not None and not result.rebuilt.unnoticed:
        yield "readers noticed the rebuild"
    if result.mended is not None and result.mended.left:
        yield "the damaged row was not repaired"
    if result.forgotten is not None and result.forgotten.found_in:
        yield "erased values were found again"
    if result.forgotten is not None and result.forgotten.incomplete:
        yield f"the erasure is not complete in {', '.join(result.forgotten.incomplete)}"


def _views(result: DemoResult, *, unicode: bool) -> Table:
    table = _table()
    table.add_column("view", no_wrap=True)
    table.add_column("rows", justify="right")
    for store in STORES:
        table.add_column(STORE_NAMES[store], justify="center", min_width=10)
    table.add_column("applied through", justify="right")
    found = {(view.view, view.store): view for view in result.views}
    for name in dict.fromkeys(view.view for view in result.views):
        copies = [found.get((name, store)) for store in STORES]
        there = [copy for copy in copies if copy is not None]
        table.add_row(
            name,
            f"{there[0].rows:,}",
            *[_cell(copy, unicode=unicode) for copy in copies],
            Text(min((copy.applied_through for copy in there), key=_position), "dim"),
        )
    return table


def _cell(copy: StoreComparison | None, *, unicode: bool) -> Text:
    if copy is None:
        return Text("—" if unicode else "-", "dim")
    if copy.agrees:
        return Text("✓" if unicode else "equal", "green")
    wrong = {"missing": copy.missing, "extra": copy.extra, "different": copy.different}
    lines = [f"{count:,} {name}" for name, count in wrong.items() if count]
    return Text("\n".join(lines), "bold red")


def _freshness(result: DemoResult) -> Table:
    table = _table()
    table.add_column("commit until seen in", no_wrap=True)
    for heading in ("p50", "p99", "slowest", "samples"):
        table.add_column(heading, justify="right")
    for store in reversed(STORES):
        if store in result.freshness:
            table.add_row(STORE_NAMES[store], *_waits(result.freshness[store]))
    return table


def _waits(found: Freshness) -> Iterable[Text]:
    for wait_ms in (found.p50_ms, found.p99_ms, found.max_ms):
        yield Text(duration(wait_ms))
    unseen = f" ({found.unseen:,} never)" if found.unseen else ""
    yield Text(f"{found.samples:,}{unseen}", "red" if unseen else "dim")


def _invariants(result: DemoResult, *, unicode: bool) -> Table:
    names = list(result.invariants[0].values)
    table = _table()
    table.add_column("sums that must be equal", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("")
    marks = {True: ("✓" if unicode else "equal"), False: ("✗" if unicode else "NOT EQUAL")}
    for invariant in result.invariants:
        style = "green" if invariant.holds else "bold red"
        table.add_row(
            STORE_NAMES.get(invariant.place, invariant.place),
            *[f"{invariant.values[name]:,}" for name in names],
            Text(marks[invariant.holds], style),
        )
    return table


def _facts(result: DemoResult) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    undone = f", {result.rolled_back:,} more rolled back" if result.rolled_back else ""
    table.add_row(
        "traffic",
        f"{result.changes:,} row changes in {result.seconds:.0f} s, "
        f"{result.changes_per_second:.0f} a second; "
        f"{result.transactions:,} transactions{undone}",
    )
    table.add_row("caught up", f"{result.caught_up_s:.1f} s after the last commit")
    startup = result.startup
    table.add_row(
        "started",
        f"first change {startup.first_change_s:.1f} s, servers {startup.services_ready_s:.1f} s, "
        f"Spark {startup.job_ready_s:.1f} s",
    )
    table.add_row("memory", f"{result.memory_mib:,} MiB, all processes together, at most")
    for recovery in result.recoveries:
        table.add_row(
            "killed",
            f"{recovery.killed} (kill -9, pid {recovery.pid}), {recovery.killed_after_s:.0f} s "
            f"into the traffic; back after {recovery.back_after_s:.1f} s, "
            f"caught up after {recovery.caught_up_after_s:.1f} s",
        )
    if result.rebuilt is not None:
        for label, value in _rebuilt(result.rebuilt):
            table.add_row(label, value)
    for label, value in _post_traffic_checks(result):
        table.add_row(label, value)
    return table


def _rebuilt(rebuilt: RebuildResult) -> Iterable[tuple[str, str]]:
    seen = list(rebuilt.watched.values())
    counts = {
        "reads": sum(each.reads for each in seen),
        "errors": sum(each.errors for each in seen),
        "empty": sum(each.empties for each in seen),
        "older than one before": sum(each.steps_back for each in seen),
    }
    built = f"{rebuilt.view}, {rebuilt.changes:,} changes; ready after {rebuilt.built_s:.1f} s"
    yield "rebuilt", f"{built}, equal except for its changed definition"
    kills = f", {rebuilt.killed} of them killed during the switch" if rebuilt.killed else ""
    yield "switched", f"{rebuilt.switches} times, in three stores{kills}"
    job = rebuilt.job_killed
    builds = "the command that built it; " if rebuilt.builds_killed else ""
    yield (
        "killed",
        f"{builds}{job.killed} during the switches, back after {job.back_after_s:.1f} s",
    )
    yield "readers", ", ".join(f"{count:,} {what}" for what, count in counts.items())
    for store in reversed(STORES):
        if store in rebuilt.before:
            before, building = rebuilt.before[store], rebuilt.building[store]
            said = (
                f"{duration(before.p99_ms)} before, {duration(building.p99_ms)} while it was built"
            )
            moving = f"{duration(rebuilt.switching[store].p99_ms)} while readers were moved"
            yield f"p99 {STORE_NAMES[store]}", f"{said}, {moving}"


def _post_traffic_checks(result: DemoResult) -> Iterable[tuple[str, str]]:
    if result.mended is not None:
        place = STORE_NAMES[result.mended.store]
        after = "not repaired" if result.mended.left else "detected and repaired"
        yield "damaged", f"one byte of {result.mended.view} in {place}: {after}"
    if result.forgotten is not None:
        found = result.forgotten
        searched = f"found in {found.found_in or 'none'} of {found.files:,} files"
        erased = f"a row of {found.table}: {found.records} records erased"
        yield "forgotten", f"{erased}; {found.values} values, {searched}"


def duration(wait_ms: float) -> str:
    """Formats milliseconds: `84 ms`, `1.24 s`, `12.4 s`, or a dash."""
    if math.isnan(wait_ms):
        return "-"
    if wait_ms < _SECOND_MS:
        return f"{wait_ms:.0f} ms"
    return f"{wait_ms / 1000:.{2 if wait_ms < _TEN_SECONDS_MS else 1}f} s"


def _table() -> Table:
    return Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))


def _options(result: DemoResult) -> str:
    workload = "" if result.workload == "globalshop" else f" --workload {result.workload}"
    chaos = "".join(f" --chaos {recovery.killed}" for recovery in result.recoveries)
    return workload + chaos + (" --rebuild" if result.rebuilt else "")


def _position(text: str) -> tuple[int, int]:
    high, _, low = text.partition("/")
    return (int(high or "0", 16), int(low or "0", 16))
