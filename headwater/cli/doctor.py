"""`headwater doctor`: missing prerequisites, and the commands that repair them."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING

import typer

from cdc.postgres.check import Check, CheckState
from foundation.errors import EXIT_MISSING, EXIT_UNHEALTHY
from headwater import runtime
from headwater.cli.hints import completed
from headwater.cli.options import Json, SourceOptions
from headwater.cli.output import escape, print_json, stdout
from headwater.platform.doctor import (
    cache_check,
    converter_check,
    former_sources,
    half_added_source,
    machine_checks,
    secret_checks,
    source_checks,
)
from headwater.platform.platform import Platform
from headwater.platform.specs import capture_spec
from headwater.project.project import EXAMPLE, open_project
from headwater.project.spelling import printable
from headwater.runtime import Endpoints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DEPENDENCIES = {"python", "java", "postgres program", "cache program"}
_MARKS = {
    CheckState.OK: "[green]✓[/]",
    CheckState.WARN: "[yellow]![/]",
    CheckState.FAIL: "[red]✗[/]",
}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor")(doctor)


def doctor(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Check this machine and each source, and name the command that repairs each finding.

    Changes nothing. Exits 3 if something must be repaired, and 4 if a program is missing.
    """
    path = options.settings_file()
    if options.config is None and not path.is_file():
        path = EXAMPLE  # without a project there is still a machine to check
    project = open_project(path, home=options.home, profile=options.profile)
    running = runtime.status(project.settings.home)
    up = running is not None and running.services_ready
    checks: Iterable[Check] = machine_checks(project.settings, running=up)
    parts = project.parts if options.chosen is None else (project.part(options.chosen),)
    checks = chain(checks, *(_of_source(Platform(part, path), up=up) for part in parts))
    checks = chain(checks, former_sources(project), half_added_source(path.parent))
    external = project.settings.services.connect.address
    if external is not None:
        escaped = any(part.source.escaped_topics for part in parts)
        check = converter_check(external.get_secret_value(), escaped_topics=escaped)
        checks = chain(checks, [check])
    cache = project.settings.services.cache.address
    if cache is not None:
        checks = chain(checks, [cache_check(cache.get_secret_value())])
    seen = []
    for check in checks:
        seen.append(check)
        if not as_json and not _usual(check):
            _show(check)
    if as_json:
        print_json([asdict(check) for check in seen])
    elif usual := sum(map(_usual, seen)):
        _show(Check("other tables", CheckState.OK, f"{usual} have a key"))
    failed = {check.name for check in seen if check.state is CheckState.FAIL}
    if failed:
        raise typer.Exit(EXIT_MISSING if failed & _DEPENDENCIES else EXIT_UNHEALTHY)


def _of_source(platform: Platform, *, up: bool) -> Iterator[Check]:
    """Checks a source; of several, each check names its own."""
    project = platform.project
    name = project.source.name
    if not up and project.settings.for_source(name).dsn is None:
        return
    # only the source is checked: the servers need not run yet
    spec = capture_spec(project, platform.source_dsn, Endpoints())
    here = (project.home.root / "checkpoints" / name).is_dir()
    checks = chain(source_checks(spec, captured_here=up or here), secret_checks(spec))
    if not project.shares_home:
        yield from checks
        return
    for check in checks:
        hint = check.hint and completed(check.hint, name)
        yield replace(check, name=f"{check.name} ({name})", hint=hint)
    if (error := platform.same_database()) is not None:
        yield Check(f"database ({name})", CheckState.FAIL, error.message, None, error.hint)


def _usual(check: Check) -> bool:
    """Returns whether a check needs no line, such as those of hundreds of correct tables."""
    return check.state is CheckState.OK and check.name.startswith("table ") and not check.detail


def _show(check: Check) -> None:
    out = stdout()
    line = f"{printable(check.name):<22} {printable(check.message)}"
    out.print(f"{_MARKS[check.state]} {escape(line)}", soft_wrap=True)
    if check.state is not CheckState.OK:
        if check.detail:
            out.print(f"  {'':<22} [dim]seen[/]   {escape(check.detail)}", soft_wrap=True)
        if check.hint:
            out.print(f"  {'':<22} [dim]repair[/] {escape(check.hint)}", soft_wrap=True)
