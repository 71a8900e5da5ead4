"""`headwater up`, `down`, `status`, `logs`: the servers and the job."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.errors import CdcError
from cdc.postgres import session, slot
from cdc.upkeep.remnants import PREFIX as CAPTURE_PREFIX
from eventstore.errors import EventStoreError
from foundation.errors import EXIT_UNHEALTHY
from headwater import runtime
from headwater.cli.condensed import condensed, names
from headwater.cli.options import Json, ProjectOptions
from headwater.cli.output import counted, escape, print_json, print_rows, stderr
from headwater.cli.sources import for_each
from headwater.errors import HeadwaterError, UsageError
from headwater.platform.job_status import JobReport
from headwater.platform.platform import Platform
from headwater.platform.specs import JOB
from projections.errors import ProjectionError
from projections.planning.job_config import run_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdc.snapshot.report import ReadReport
    from headwater.cli.sources import PerSource
    from headwater.project.project import Project
    from headwater.runtime import RuntimeStatus, ServiceStatus, StatusEvent

_FIRST_CHANGE_S = 60.0
_JOB_READY_S = 180.0
_TABLE_READY_S = 2.0
"""Time that each table may add: its snapshot, its index in search and its files."""

_TABLES_LISTED_MAX = 24
"""Maximum number of tables reported one by one; of more, only their number is."""

_LARGE_ROWS = 100_000
"""Minimum size of a table whose own progress is printed in addition to the count, rows."""

_MIB = 1024 * 1024
_ASK_S = 3
_EACH_MAX = 5  # tables that are read by the same look are named one by one
_MARKS = {
    runtime.ServiceState.READY: "[green]●[/]",
    runtime.ServiceState.STARTING: "[yellow]○[/]",
    runtime.ServiceState.RESTARTING: "[yellow]◐[/]",
    runtime.ServiceState.FAILED: "[red]✗[/]",
    runtime.ServiceState.SUSPENDED: "[dim]○[/]",
    runtime.ServiceState.STOPPED: "[dim]○[/]",
}


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("status")(status)
    app.command("logs")(logs)


def up(
    *,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Start the missing servers, the capture of each source, and its job.

    Returns when the jobs maintain the views; everything then runs in the background until
    `headwater down`. A second `up` in the same folder joins the running services. If one of several
    sources cannot be captured, its error is printed and the others are started.
    """
    platforms = options.platforms()
    platform = platforms[0]  # servers and home folder are those of all
    began = time.monotonic()

    def say(text: str) -> None:
        stderr.print(f"[dim]{time.monotonic() - began:6.1f} s[/]  {text}")

    ran_before = platform.running()
    if not ran_before and len(platforms) == 1:
        _reach(platform.project)
    try:
        platform.start(lambda event: _announce(event, say))
        done = _derive(platforms, say)
    except KeyboardInterrupt:
        if not ran_before:
            stderr.print("interrupted: stopping everything")
            platform.stop()
        raise
    except Exception:
        if platform.running():
            say("the servers keep running; headwater down stops them")
        raise
    if as_json:
        print_json(_status_document(platform.status()))
    done.end()


def _reach(project: Project) -> None:
    """Connects to the source once, before the servers start, which takes minutes.

    Raises:
        PostgresError: It cannot be reached, or does not let the role in.
    """
    dsn = project.settings.for_source(project.source.name).dsn
    if dsn is not None:  # else it is one of the servers
        session.connect(dsn.get_secret_value()).close()


def down(options: ProjectOptions) -> None:
    """Stop the job, then all local servers.

    The replication slot at the source stays, so that `up` can continue from there. Until then the
    source retains its log; the command reports how much, and the command that removes the slot.
    """
    folder = options.home_folder()
    stopped = runtime.down(folder)
    stderr.print("stopped" if stopped else "nothing was running")
    try:
        project = options.project()
    except (HeadwaterError, CdcError, ProjectionError, EventStoreError):
        return  # a running job can be stopped even if its views cannot be loaded
    for part in project.parts:
        _show_cost(part)


def _show_cost(project: Project) -> None:
    """Prints the log that the source retains while its capture is down."""
    name = project.source.name
    dsn = project.settings.for_source(name).dsn
    if dsn is None:
        return  # the source was one of the servers
    try:
        with session.connect(dsn.get_secret_value(), timeout_s=_ASK_S) as connection:
            slot_status = slot.status(connection, CAPTURE_PREFIX + name)
    except CdcError as error:
        stderr.print(f"the retained log of the source is unknown: {escape(error.message)}")
        return
    if slot_status is None:
        return
    retained = f"{slot_status.retained_bytes / _MIB:,.1f} MiB"
    stderr.print(
        f"[yellow]slot[/] {slot_status.name} at the source retains {retained} of its log, and more "
        "with every write, until headwater up continues to read",
        soft_wrap=True,
    )
    stderr.print("  permanently: headwater source remove lists the objects, and --yes removes them")


def status(
    *,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Show the running services. Exits 3 if a service that should run does not."""
    folder = options.home_folder()
    runtime_status = runtime.status(folder)
    if runtime_status is not None:
        explained = tuple(_explained(folder, service) for service in runtime_status.services)
        runtime_status = replace(runtime_status, services=explained)
    if as_json:
        print_json(_status_document(runtime_status))
    elif runtime_status is None:
        stderr.print("nothing was ever started here; headwater up starts it")
    else:
        print_rows(
            [_row(service) for service in runtime_status.services],
            as_json=False,
            title="",
            empty="",
        )
    if runtime_status is None or not runtime_status.ready:
        raise typer.Exit(EXIT_UNHEALTHY)


def logs(
    service: Annotated[str, typer.Argument(help="A service, `projections` or `supervisor`.")],
    *,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000)] = 50,
    options: ProjectOptions,
) -> None:
    """Print the end of a service's log."""
    folder = options.home_folder()
    path = runtime.log_path(folder, Path(service).name)
    if not path.is_file():
        known = ", ".join(sorted(log.stem for log in path.parent.glob("*.log"))) or "none yet"
        raise UsageError(f"there is no log of {service}", hint=f"logs: {known}")
    tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    typer.echo("\n".join(tail))


def _derive(platforms: Sequence[Platform], say: Callable[[str], None]) -> PerSource[None]:
    """Starts every capture, then waits for each."""
    applied = for_each(platforms, lambda each: _apply(each, say))
    begun = [each for each in platforms if each.project.source.name in applied.results]
    kept = for_each(begun, lambda each: _await_views(each, say)) if begun else applied
    return replace(kept, failed={**applied.failed, **kept.failed})


def _apply(platform: Platform, say: Callable[[str], None]) -> None:
    for change in condensed(platform.apply()):
        say(f"[cyan]source[/]   {_of(platform)}{escape(change)}")


def _await_views(platform: Platform, say: Callable[[str], None]) -> None:
    first = platform.first_change(_FIRST_CHANGE_S)
    if first is None:
        say(f"[cyan]captured[/] {_of(platform)}no row and no change so far")
    else:
        operation = "snapshot row" if first.snapshot else first.operation.name.lower()
        text = f"first change event: {operation} of {escape(str(first.table))}"
        say(f"[cyan]captured[/] {_of(platform)}{text}")
    tables = len(platform.project.source.tables)
    report_progress = progress_printer(say, tables)
    platform.await_job(_JOB_READY_S + _TABLE_READY_S * tables, report_progress)
    say(f"[green]views are being kept[/]; {_of(platform)}headwater view status shows how far")


def _of(platform: Platform) -> str:
    """Names the source in a line about it, if there are several."""
    project = platform.project
    return f"{project.source.name}: " if project.shares_home else ""


def progress_printer(say: Callable[[str], None], tables: int) -> Callable[[list[ReadReport]], None]:
    """Returns a function that prints the progress of reads: of each table, or a count of many."""
    return _progress_printer(say) if tables <= _TABLES_LISTED_MAX else _counter(say, tables)


def _progress_printer(say: Callable[[str], None]) -> Callable[[list[ReadReport]], None]:
    """Returns a function that prints the progress of each table whenever it has changed."""
    printed: dict[str, str] = {}
    complete: set[str] = set()

    def report(reports: list[ReadReport]) -> None:
        ended = [line for line in reports if line.state == "done" and line.table not in complete]
        complete.update(line.table for line in ended)
        if len(ended) > _EACH_MAX:
            rows = sum(line.rows_read for line in ended)
            tables = names(each.table for each in ended)
            done = f"{counted(len(ended), 'table')} done, {counted(rows, 'row')}: {tables}"
            say(f"[cyan]read[/]     {escape(done)}")
            ended = []
        for line in reports:
            if line.state == "done" and line not in ended:
                continue
            if line.state not in ("reading", "done", "failed") and line.failure is None:
                continue
            if printed.get(line.table) != (text := _progress(line)):
                printed[line.table] = text
                say(f"[cyan]read[/]     {escape(text)}")

    return report


def _counter(say: Callable[[str], None], tables: int) -> Callable[[list[ReadReport]], None]:
    """Returns a function that prints the number of complete tables, and slow or failed ones."""
    report = _progress_printer(say)
    printed = ""

    def count(reports: list[ReadReport]) -> None:
        nonlocal printed
        done = sum(line.state == "done" for line in reports)
        rows = sum(line.rows_read for line in reports)
        text = f"{done} of {tables} tables, {rows:,} rows"
        if text != printed:
            printed = text
            say(f"[cyan]read[/]     {text}")
        report([line for line in reports if line.failure or _large(line)])

    return count


def _large(line: ReadReport) -> bool:
    return line.state == "reading" and (line.rows_expected or 0) >= _LARGE_ROWS


def _progress(line: ReadReport) -> str:
    of = "" if line.percent is None or line.state == "done" else f" ({line.percent:g} %)"
    why = f": {line.failure}" if line.failure else ""
    return f"{line.table} {line.state}, {counted(line.rows_read, 'row')}{of}{why}"


def _announce(event: StatusEvent, say: Callable[[str], None]) -> None:
    service = event.service
    if service.state is not runtime.ServiceState.STARTING:
        where = f" [dim]{escape(service.address)}[/]" if service.address else ""
        say(f"{_MARKS[service.state]} {service.name} {service.state}{where}")


def _explained(folder: Path, service: ServiceStatus) -> ServiceStatus:
    """Puts a job's own error before its exit code."""
    command, _, source = service.name.partition(".")
    if command != JOB or service.last_error is None:
        return service
    error = JobReport(run_folder(folder, source or None)).error
    return replace(service, last_error=f"{error} ({service.last_error})") if error else service


def _row(service: ServiceStatus) -> dict[str, object]:
    return {
        "service": service.name,
        "state": service.state.value,
        "address": service.address,
        "pid": service.pid,
        "memory": f"{service.rss_bytes // _MIB} MiB" if service.rss_bytes else None,
        "restarts": service.restarts,
        "last error": (service.last_error or "").splitlines()[0] if service.last_error else None,
    }


def _status_document(runtime_status: RuntimeStatus | None) -> dict[str, object]:
    if runtime_status is None:
        return {"running": False, "ready": False, "services": []}
    return {
        "running": runtime_status.running,
        "ready": runtime_status.ready,
        "services": [asdict(service) for service in runtime_status.services],
    }
