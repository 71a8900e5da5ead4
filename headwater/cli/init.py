"""`headwater init`: a project for a database; every choice is printed before it is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headwater.cli.options import Json
from headwater.cli.output import counted, duration, escape, print_json, print_rows, stderr
from headwater.errors import UsageError
from headwater.project import scaffold
from headwater.project.settings import DEFAULT_FILE
from headwater.project.spelling import printable, view_names
from headwater.project.survey import EXCLUDED, NOT_ASKED, TableSelection
from headwater.project.views_text import views_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headwater.project.scaffold import Draft
    from headwater.project.survey import Choice, DatabaseSurvey

_LISTED_MAX: Final = 24
"""Maximum number of tables listed, the largest first; the preview lists all."""

_NAMED_MAX: Final = 5
_START_S: Final = 23
"""Approximate time until servers and job have started, without the time for tables."""

_UNITS: Final = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


_Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--tables", metavar="NAME", help="Mirror only these tables; repeatable, accepts *."
    ),
]


_Schemas = Annotated[
    list[str] | None,
    typer.Option(
        "--schemas", metavar="NAME", help="Mirror only tables of these schemas; repeatable."
    ),
]


_Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="NAME", help="Leave out these tables; repeatable, accepts *."
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("init")(init)


def init(  # the options for a database
    folder: Annotated[
        Path | None,
        typer.Argument(help="The project's folder; with --add-source, default: this folder."),
    ] = None,
    *,
    add_source: Annotated[
        str | None,
        typer.Option(
            "--add-source",
            metavar="NAME",
            help="Add the database to the project in the folder, as a source of that name.",
        ),
    ] = None,
    dsn: Annotated[
        str,
        typer.Option(
            "--dsn",
            help="The database, postgresql://user:password@host/name or any other form that psql"
            " accepts; missing parts come from PGHOST, PGUSER, PGPASSWORD, ...",
        ),
    ] = "",
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the source; default: the folder's name.")
    ] = None,
    tables: _Tables = None,
    schemas: _Schemas = None,
    exclude: _Exclude = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show all choices and the views without writing files."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Inspect a database, choose the tables to mirror, and write headwater.toml and views.py.

    Shows which tables are mirrored to which stores, which are left out and why, and the cost of the
    first load. Leaves out a table without a key unless --tables names it, because Postgres refuses
    UPDATE and DELETE on such a table while it is captured. Mirrors large tables only to the
    warehouse. Changes nothing in the database. Writes the DSN to a file `.env` that only you can
    read.

    With --add-source, adds the database to a project: appends to headwater.toml, .env and the views
    module, and changes nothing else in them.

    Example: headwater init shop --dsn postgresql://me:secret@db.example/shop --exclude "tmp_*"
    """
    wanted = TableSelection(_listed(tables), _listed(schemas), _listed(exclude))
    if add_source is not None:
        _add(folder or Path(), add_source, dsn, wanted, dry_run=dry_run, as_json=as_json)
        return
    if folder is None:
        raise UsageError("no folder is named", hint="headwater init shop --dsn postgresql://...")
    draft = scaffold.draft(folder, dsn, name or folder.resolve().name, wanted)
    if as_json:
        files = [] if dry_run else scaffold.write(draft)
        print_json(_document(draft, files))
        return
    _show(draft.survey, everything=dry_run)
    if dry_run:
        typer.echo(f"\n{views_text(draft.survey)}", nl=False)
        stderr.print("nothing was written: --dry-run")
        return
    for file in scaffold.write(draft):
        stderr.print(f"wrote {escape(str(file))}", soft_wrap=True)
    stderr.print(f"next: cd {escape(str(folder))} && headwater doctor && headwater up")


def _add(  # the options for a database
    folder: Path, name: str, dsn: str, wanted: TableSelection, *, dry_run: bool, as_json: bool
) -> None:
    """Adds a source to the project in a folder."""
    from headwater.platform.others import refuse_captured  # noqa: PLC0415  # needs the extra
    from headwater.project.added_source import added  # noqa: PLC0415
    from headwater.project.project import open_project  # noqa: PLC0415

    config = folder / DEFAULT_FILE
    _remove_unfinished(folder, dry_run=dry_run)
    project = open_project(config)
    made, draft = added(project, config, name, dsn, wanted)
    refuse_captured(project, name, draft.dsn)
    files = [] if dry_run else made.write()
    if as_json:
        print_json(_document(draft, files, made.taken))
        return
    _show(draft.survey, everything=dry_run)
    if dry_run:
        typer.echo(
            f"{config}:\n{made.settings}\n{project.settings.views_path}:{made.views}", nl=False
        )
        stderr.print("nothing was written: --dry-run")
        return
    for file in files:
        stderr.print(f"extended {escape(str(file))}", soft_wrap=True)
    stderr.print("next: headwater doctor && headwater down && headwater up")


def _remove_unfinished(folder: Path, *, dry_run: bool) -> None:
    """Removes the additions of an earlier command that was killed."""
    from headwater.project import added_text  # noqa: PLC0415

    name = added_text.unfinished(folder)
    if name is not None and dry_run:
        raise UsageError(
            f"an earlier command was interrupted while it added source {name}",
            hint="without --dry-run, its additions are removed first",
        )
    if name is not None and added_text.undo(folder) is not None:
        stderr.print(f"removed the additions of an interrupted command for source {escape(name)}")


def _listed(words: Sequence[str] | None) -> tuple[str, ...]:
    """Names that are given one by one, or several with commas between them."""
    return tuple(part for word in words or () for part in word.split(",") if part)


def _show(survey: DatabaseSurvey, *, everything: bool) -> None:
    largest = sorted(survey.mirrored, key=lambda choice: -choice.size_bytes)
    listed = survey.mirrored if everything else largest[:_LISTED_MAX]
    print_rows([_row(choice) for choice in listed], as_json=False, title="", empty="")
    more = len(survey.mirrored) - len(listed)
    if more:
        stderr.print(f"and {more} more, none larger; --dry-run shows them")
    if survey.eventstore:
        stderr.print("the event store is captured as well: views of events are for you to declare")
    for note, choices in survey.by_note():
        tables = _named(choices, everything=everything)
        _warn(
            f"{tables} {note}" if len(choices) == 1 else f"{len(choices)} tables {note}: {tables}"
        )
    for reason, choices in survey.by_reason():
        _show_left_out(reason, choices, everything=everything)
    _show_load(survey)
    for check in survey.findings:
        _warn(f"before it can be captured: {check.name}: {check.message}")
        if check.hint:
            stderr.print(f"  [dim]repair[/] {escape(check.hint)}", soft_wrap=True)


def _show_left_out(reason: str, choices: Sequence[Choice], *, everything: bool) -> None:
    tables = _named(choices, everything=everything)
    colour = "dim" if reason in {EXCLUDED, NOT_ASKED} else "yellow"
    stderr.print(
        f"[{colour}]not mirrored[/] {escape(tables)}: {escape(printable(reason))}",
        soft_wrap=True,
    )
    repairs = list(dict.fromkeys(choice.repair for choice in choices if choice.repair))
    for repair in repairs if everything else repairs[:1]:
        stderr.print(f"  [dim]repair[/] {escape(printable(repair))}", soft_wrap=True)
    if len(repairs) > 1 and not everything:
        rest = f"and {len(repairs) - 1} more statements, one for each table; --dry-run shows them"
        stderr.print(f"         {rest}")


def _named(choices: Sequence[Choice], *, everything: bool) -> str:
    named = choices if everything else choices[:_NAMED_MAX]
    more = len(choices) - len(named)
    tables = ", ".join(printable(str(choice.table)) for choice in named)
    return f"{tables} and {more} more" if more else tables


def _show_load(survey: DatabaseSurvey) -> None:
    rows = sum(choice.rows for choice in survey.mirrored)
    size = _size(sum(choice.size_bytes for choice in survey.mirrored))
    disk = _size(sum(choice.disk_bytes for choice in survey.mirrored))
    stderr.print(
        f"first load: {counted(len(survey.mirrored), 'table')}, about {counted(rows, 'row')} "
        f"({size}), about "
        f"{duration(_load_s(survey))} on two cores (a rough estimate), "
        f"and {disk} of this machine's disk",
        soft_wrap=True,
    )


def _load_s(survey: DatabaseSurvey) -> float:
    return _START_S + sum(choice.load_s for choice in survey.mirrored)


def _warn(text: str) -> None:
    stderr.print(f"[yellow]warning[/] {escape(printable(text))}", soft_wrap=True)


def _row(choice: Choice) -> dict[str, object]:
    return {
        "table": printable(str(choice.table)),
        "rows": choice.rows,
        "size": _size(choice.size_bytes),
        "mirrored to": ", ".join(choice.to),
    }


def _document(draft: Draft, files: Sequence[Path], taken: Collection[str] = ()) -> dict[str, Any]:
    survey = draft.survey
    names = view_names([choice.table for choice in survey.mirrored], survey.source, taken)
    return {
        "source": survey.source,
        "eventstore": survey.eventstore,
        "tables": [
            {
                "table": str(choice.table),
                "view": names.get(choice.table),
                "to": list(choice.to),
                "rows": choice.rows,
                "size_bytes": choice.size_bytes,
                "reason": choice.reason,
                "hint": choice.repair,
                "notes": list(choice.notes),
            }
            for choice in survey.choices
        ],
        "first_load": {
            "rows": sum(choice.rows for choice in survey.mirrored),
            "seconds": round(_load_s(survey)),
            "disk_bytes": sum(choice.disk_bytes for choice in survey.mirrored),
        },
        "findings": [
            {"name": c.name, "message": c.message, "hint": c.hint} for c in survey.findings
        ],
        "wrote": [str(file) for file in files],
    }


def _size(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count} B"
