"""`headwater view rebuild`: another version of a view, filled from the archive."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from foundation.errors import EXIT_INTERRUPTED, EXIT_UNHEALTHY
from headwater.cli.options import Json, ProjectOptions
from headwater.cli.output import counted, escape, print_error, print_json, stderr, stdout
from headwater.cli.version import View, compared, document, opened, show_difference, show_still
from projections.errors import RebuildStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.operations.versions import Origin, Switched, Versions
    from projections.archive.progress import ReplayProgress
    from projections.versions.fill import FillOptions
    from projections.versions.fill_way import FillWay
    from projections.versions.rebuild import RebuildPlan
    from projections.versions.version import ViewVersion

_SHARE = 0.5
"""Half of a core: it hardly slows live views."""

_SHARE_MIN = 0.0001

_NICENESS = 10
"""It yields its core to other processes: readers wait for those, but not for a rebuild."""


class CutoverRule(StrEnum):
    """When a new version becomes active automatically."""

    WHEN_EXPLAINED = "when-explained"
    """If the changed definition explains every difference from the active version."""


FromSource = Annotated[
    bool, typer.Option("--from-source", help="Read the source table instead of the archive.")
]
Share = Annotated[
    float,
    typer.Option(
        "--share", min=_SHARE_MIN, max=1, help="Maximum share of the time that the replay uses."
    ),
]
Cutover = Annotated[
    CutoverRule | None,
    typer.Option(
        "--cutover", help="Activate the version if the comparison finds no unexplained difference."
    ),
]
OnlyPlan = Annotated[bool, typer.Option("--plan", help="Only show what would be done.")]


def rebuild(
    name: View,
    *,
    from_source: FromSource = False,
    share: Share = _SHARE,
    cutover: Cutover = None,
    only_plan: OnlyPlan = False,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Build another version of a view beside the active one, and hold it.

    Uses the present definition of the view. Ctrl-C pauses the rebuild; the same command resumes it.
    Readers are not affected: activate the version with `headwater view cutover`, or automatically
    with --cutover. With --cutover, exits 3 and holds the version if the comparison finds an
    unexplained difference.
    """
    versions = opened(options, name)
    origin: Origin = "source" if from_source else "archive"
    if only_plan:
        show_plan(versions.plan(name, origin, share=share), as_json=as_json)
        return
    with versions.planned_rebuild(name, origin, share=share) as planned:
        if not as_json:
            show_plan(planned.plan, as_json=False)
        os.nice(_NICENESS)
        with _filling(name, share, as_json=as_json) as filling:
            version = planned.run(filling, held_too=cutover is not None)
    if cutover is None:
        _print_held(version, as_json=as_json)
    else:
        _cut_over_held(versions, version, as_json=as_json)


@contextmanager
def _filling(name: str, share: float, *, as_json: bool) -> Iterator[FillOptions]:
    """Yields the options of a fill with a progress line, which Ctrl-C ends."""
    from projections.versions import fill as filling  # noqa: PLC0415  # half a second of import

    with _interrupted() as stopped, _bar(name, visible=not as_json) as show_progress:
        try:
            yield filling.FillOptions(
                share, stopped, show_progress, (lambda _: None) if as_json else _print_progress
            )
        except RebuildStoppedError as error:
            print_error(error, as_json=as_json)
            raise typer.Exit(EXIT_INTERRUPTED if stopped.is_set() else 1) from None


def _print_progress(waits: str) -> None:
    stderr.print(f"[dim]{escape(waits)}[/]", soft_wrap=True)


def _print_held(version: ViewVersion, *, as_json: bool) -> None:
    if as_json:
        print_json(document(version))
        return
    name = version.view
    stdout().print(
        f"version {version.number} of view {name} is built and held", markup=False, soft_wrap=True
    )
    stderr.print(
        f"compare it: headwater view compare {name}; switch: headwater view cutover {name}"
    )


def _cut_over_held(versions: Versions, version: ViewVersion, *, as_json: bool) -> None:
    """Moves readers to a held version, if the rule permits it."""
    switched = versions.cutover_when_explained(version.view, version.number)
    if as_json:
        difference = switched.difference
        summary = None if difference is None else compared(difference)
        state = "current" if switched.moved else "held"
        still = dict(switched.stand_still)
        print_json(
            {**document(version), "state": state, "difference": summary, "stand_still": still}
        )
    else:
        _print_cutover(switched)
    if not switched.moved:
        raise typer.Exit(EXIT_UNHEALTHY)


def _print_cutover(switched: Switched) -> None:
    if switched.difference is not None:
        show_difference(switched.difference)
    name, number = switched.view, switched.number
    if switched.moved:
        stdout().print(f"readers of {name} see version {number}", markup=False)
        return
    show_still(switched)
    why = (
        "views derived from it would be paused"
        if switched.difference is not None and switched.difference.same
        else "its definition does not explain every difference"
    )
    stdout().print(f"version {number} of view {name} is held: {why}", markup=False, soft_wrap=True)
    stderr.print(f"accept that: headwater view cutover {name} --accept-differences")


def show_plan(planned: RebuildPlan, *, as_json: bool) -> None:
    """Prints the plan of a rebuild: one document, or lines on stderr."""
    planned_document = {
        "view": planned.view,
        "differs": planned.differs,
        "filled_from": planned.source,
        "changes": planned.changes,
        "seconds": planned.seconds,
        "known_by": planned.known_by,
        "filled_by": None if planned.filled_by is None else _filler(planned.filled_by),
        "disk_bytes": planned.disk_bytes,
        "disk_free_bytes": planned.disk_free_bytes,
        "stores": {store: room._asdict() for store, room in planned.stores.items()},
        "followed_by": planned.followers,
        "stand_still": dict(planned.stand_still),
    }
    if as_json:
        print_json({**planned_document, "lacking": planned.lacking, "instead": planned.instead})
        return
    archived = planned.source == "archive"
    work = counted(planned.changes, "change" if archived else "row")
    work = work if archived else f"about {work}"
    takes = f"about {planned.seconds:,.0f} s"
    takes += f"; {planned.known_by}" if planned.known_by else ""
    filled_from = {"archive": "the archive", "source": "a read of its table"}
    lines = [
        ("changes", "; ".join(planned.differs) or "nothing: it is built again as it is"),
        ("filled from", filled_from.get(planned.source, "the tables of its inputs")),
        ("to replay" if archived else "to read", f"{work}, {takes}"),
        ("disk", f"{_mib(planned.disk_bytes)} of {_mib(planned.disk_free_bytes)} free"),
        ("followed by", ", ".join(planned.followers) or "no other view"),
    ]
    if planned.filled_by is not None:
        by, why = _filler(planned.filled_by).values()
        who = "the job's Spark" if by == "job" else "this command"
        lines.insert(3, ("filled by", f"{who}: {why}"))
    for store, room in planned.stores.items():
        free = "" if room.free_bytes is None else f" of {_mib(room.free_bytes)} free"
        lines.append((f"in {store}", f"about {_mib(room.taken_bytes)}{free}"))
    lines += [("stand still", f"{name}: {why}") for name, why in planned.stand_still.items()]
    if planned.lacking is not None:
        lines += [("refused", planned.lacking), ("instead", planned.instead or "")]
    for label, text in lines:
        stderr.print(f"{label:<12}{escape(text)}", soft_wrap=True)


def _filler(way: FillWay) -> dict[str, str]:
    return {"by": "job" if way.by_job else "command", "why": way.why}


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


@contextmanager
def _bar(name: str, *, visible: bool) -> Iterator[Callable[[ReplayProgress], None]]:
    """A line with the progress of a replay and its remaining time."""
    columns = (
        TextColumn("[dim]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, disable=not visible, transient=True) as bar:
        task = bar.add_task(f"rebuild of {escape(name)}", total=None, figures="")

        lap = 0

        def show_progress(now: ReplayProgress) -> None:
            nonlocal lap
            if now.lap != lap:  # the previous round does not predict this one
                lap = now.lap
                bar.reset(
                    task, description=f"rebuild of {escape(name)}, catch-up round {lap}", figures=""
                )
            done, every = now.looked_at + now.delivered, now.rows + now.to_deliver
            figures = f"{now.looked_at:,} of {counted(now.rows, 'change')}, {now.per_s:,.0f}/s"
            bar.update(task, total=every, completed=done, figures=figures)

        yield show_progress


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that the replay stops cleanly."""
    stopped = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stopped.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
