"""The course of the demo: start, load, capture, write, build, compare, report."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from headwater.demo.drive import TrafficRun
from headwater.demo.home import is_own, recreate_folder
from headwater.demo.report import save_screen
from headwater.demo.result import DemoResult, StoreComparison
from headwater.demo.screen import Screen
from headwater.demo.shipped import workloads
from headwater.demo.start import DemoStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from headwater.demo.options import DemoOptions
    from headwater.demo.reader import ViewEndpoints
    from headwater.demo.result import ErasureResult, RepairedDamage
    from headwater.demo.workload import Workload
    from headwater.platform.platform import Platform
    from projections.verification.report import ViewReport


def run_demo(
    options: DemoOptions,
    console: Console,
    *,
    before_comparison: Callable[[Platform, ViewEndpoints], None] | None = None,
) -> DemoResult:
    """Runs the demo, and stops everything at its end, also after an error or Ctrl-C.

    Args:
        options: Options of the demo.
        console: Shows the progress; must not be stdout if a program reads that.
        before_comparison: Called when the views have caught up; a test damages a store here.

    Raises:
        DemoHomeError: The home folder contains files that no demo created.
        HeadwaterError: A service did not start or failed.
        CdcError: The source could not be captured.
        ProjectionError: The views could not be built or compared.
        KeyboardInterrupt: The demo was interrupted; everything was stopped.
    """
    screen = Screen(console)
    workload = workloads()[options.workload]()
    with _terminating_is_interrupting(), ExitStack() as cleanup:
        stack = _stack(workload, options)
        if is_own(options.home):
            stack.stop()
        recreate_folder(options.home, options.workload)
        cleanup.callback(_stop, stack, screen)
        startup = DemoStart(stack, workload, options.scale, screen).run()
        places = _places(stack)
        driven = TrafficRun(stack, workload, options, places, screen).run()
        mended, forgotten = _post_traffic_checks(stack, workload, options, places, screen)
        if before_comparison is not None:
            before_comparison(stack, places)
        with screen.waiting("comparing every row of every view with the source"):
            views = tuple(_comparison(found) for found in stack.views.verify())
            invariants = workload.invariants(stack.source_dsn, places.sum_readers())
        screen.say(f"{sum(view.rows for view in views):,} rows compared")
        if options.keep:
            cleanup.pop_all()
    result = DemoResult(
        workload=workload.name,
        position=driven.position,
        views=views,
        freshness=driven.freshness,
        seconds=driven.seconds,
        rate=options.rate,
        changes=driven.written.changes,
        transactions=driven.written.transactions,
        rolled_back=driven.written.rolled_back,
        startup=startup,
        memory_mib=driven.memory_mib,
        caught_up_s=driven.caught_up_s,
        invariants=invariants,
        recoveries=driven.recoveries,
        rebuilt=driven.rebuilt,
        mended=mended,
        forgotten=forgotten,
    )
    if options.save_screen is not None:
        save_screen(options.save_screen, screen.lines, result)
    return result


def _stack(workload: Workload, options: DemoOptions) -> Platform:
    from headwater.platform.platform import Platform  # noqa: PLC0415  # loads every driver
    from headwater.project.project import open_project  # noqa: PLC0415

    project = open_project(workload.settings_file, home=options.home)
    # with a lifeline the supervisor ends when this process does, even by kill -9
    return Platform(project, workload.settings_file, lifeline=not options.keep)


def _post_traffic_checks(
    stack: Platform, workload: Workload, options: DemoOptions, places: ViewEndpoints, screen: Screen
) -> tuple[RepairedDamage | None, ErasureResult | None]:
    if not options.rebuild or workload.person is None:
        return None, None
    from headwater.demo.aftermath import PostTrafficChecks  # noqa: PLC0415  # loads every driver

    after = PostTrafficChecks(stack, workload.person, places, screen.say)
    with screen.waiting("finding and repairing the damaged row"):
        mended = after.mend()
    with screen.waiting("erasing a person"):
        return mended, after.forget()


def _places(stack: Platform) -> ViewEndpoints:
    from headwater.demo.reader import ViewEndpoints  # noqa: PLC0415  # loads every driver

    endpoints = stack.endpoints
    tables = stack.project.settings.home / "tables"
    prefix = f"{stack.project.source.name}:"
    return ViewEndpoints(tables, endpoints.search_url, endpoints.cache_url, prefix)


def _comparison(found: ViewReport) -> StoreComparison:
    return StoreComparison(
        found.view,
        str(found.store),
        found.rows,
        found.missing,
        found.extra,
        found.different,
        str(found.applied_through),
        found.moving,
        found.quarantined,
        None if found.verified_through is None else str(found.verified_through),
    )


def _stop(stack: Platform, screen: Screen) -> None:
    with screen.waiting("stopping everything"):
        stack.stop()


@contextmanager
def _terminating_is_interrupting() -> Iterator[None]:
    """Handles SIGTERM like Ctrl-C, so that everything is stopped in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
