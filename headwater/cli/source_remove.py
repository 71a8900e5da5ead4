"""`headwater source remove`: removes the objects that a capture has created, part by part."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.postgres import session
from cdc.upkeep import remnants
from headwater.cli.options import Json, ProjectOptions
from headwater.cli.output import escape, print_json, print_rows, stderr
from headwater.errors import UsageError
from headwater.operations.remove_source import PARTS, Removal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.operations.remove_source import CapturePart
    from headwater.platform.platform import Platform

_PARTS = ", ".join(PARTS)
_CELL = 60


def remove(
    *,
    name: Annotated[
        str | None,
        typer.Option("--source", help="Name of the source; default: the project's."),
    ] = None,
    dsn: Annotated[
        str | None,
        typer.Option("--dsn", help="The database, if the project no longer exists."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="PART", help=f"Only these parts, comma-separated: {_PARTS}."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="PART", help="All parts except these, comma-separated."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm; this cannot be undone.")] = False,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Remove the objects of a source's capture in its database, in Kafka and in the home folder.

    Without --yes, lists the objects that would be removed, those that stay, and why. Objects that
    Headwater did not create stay, whatever their names. The source's job stops first; other sources
    of the project continue. The command can be repeated, also after a kill. Views that were built
    stay in the home folder and in their stores.

    Example: headwater source remove --keep topics --yes
    """
    removal = _removal(name, dsn, _wanted(only, keep), options)
    if not yes:
        _show(removal, as_json=as_json)
        return
    stay = [item for item in removal.items() if not item.goes]
    done = removal.run(lambda step: stderr.print(escape(step), soft_wrap=True))
    if as_json:
        print_json({"done": done, "stay": [asdict(item) for item in stay]})
        return
    if not done:
        stderr.print("nothing is left to remove")
    for item in stay:
        _stays(item)


def _removal(
    name: str | None,
    dsn: str | None,
    wanted: Sequence[str],
    options: ProjectOptions,
) -> Removal:
    if dsn is not None:
        if name is None:
            raise UsageError("no source is named", hint="use --source NAME with --dsn")
        return Removal(dsn, name, wanted=wanted)
    platform = _platform(options, name)
    project = platform.project
    external = project.settings.for_source(project.source.name).dsn
    address = external.get_secret_value() if external else ""
    return Removal(address, name or project.source.name, platform, wanted)


def _platform(options: ProjectOptions, name: str | None) -> Platform:
    """The source of that name, or the one whose database has remnants of it.

    Raises:
        UsageError: Several sources are declared, and it is not known which is meant.
    """
    project = options.project()
    if not project.shares_home or name is None:
        return options.platform()
    if name in project.sources:
        return options.platform_of(name)
    owners = [each for each in options.platforms() if _has_parts(each, name)]
    if len(owners) != 1:
        raise UsageError(
            f"{len(owners)} databases of the project have remnants of source {name[:80]}",
            hint="name the database: --dsn postgresql://user:password@host/name",
        )
    return owners[0]


def _has_parts(platform: Platform, name: str) -> bool:
    with session.connect(platform.source_dsn) as connection:
        return bool(remnants.find(connection, name))


def _wanted(only: Sequence[str] | None, keep: Sequence[str] | None) -> list[str]:
    chosen, kept = _listed(only) or list(PARTS), _listed(keep)
    if unknown := sorted({*chosen, *kept} - set(PARTS)):
        raise UsageError(f"a capture has no part {unknown[0]}", hint=f"parts: {_PARTS}")
    return [part for part in chosen if part not in kept]


def _listed(words: Sequence[str] | None) -> list[str]:
    return [part for word in words or () for part in word.split(",") if part]


def _show(removal: Removal, *, as_json: bool) -> None:
    items = removal.items()
    if as_json:
        print_json({"items": [asdict(item) for item in items], "stops": removal.stops})
        return
    rows = [
        {
            "part": item.part,
            "name": _short(item.name),
            "": "goes" if item.goes else "stays",
            " ": item.why,
        }
        for item in items
    ]
    print_rows(rows, as_json=False, title="", empty="nothing is left of a capture")
    if any(item.goes for item in items):
        servers = " and, at the end, the servers of this folder" if removal.stops_servers else ""
        first = f"; it first stops the source's job{servers}" if removal.stops else ""
        stderr.print(f"removed by headwater source remove --yes{first}", soft_wrap=True)


def _short(name: str) -> str:
    return name if len(name) <= _CELL else f"{name[: _CELL - 1]}…"


def _stays(item: CapturePart) -> None:
    stderr.print(
        f"[yellow]stays[/] {item.part} {escape(item.name)}: {escape(item.why)}", soft_wrap=True
    )
    if item.statement:
        stderr.print(f"  [dim]by hand[/] {escape(item.statement)}", soft_wrap=True)
