"""`headwater plan` and `headwater apply`: what differs from what is declared, and making it so."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json, ProjectOptions
from headwater.cli.output import print_json, print_rows, stderr, stdout
from headwater.errors import UsageError
from headwater.platform.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.upkeep.difference import Difference


Migration = Annotated[
    Path | None,
    typer.Option(
        "--migration",
        metavar="FILE",
        help="A file of planned SQL statements; - for standard input.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("plan")(plan)
    app.command("apply")(apply)


def plan(
    *,
    options: ProjectOptions,
    migration: Migration = None,
    as_json: Json = False,
) -> None:
    """Show differences from the declared state: connector, publication, slot, topics, views.

    Changes nothing; masks secrets. Exits 3 if there is a difference.

    With --migration: show the effect of the given statements on the views. The statements run at
    the source on empty copies of the tables, in a transaction that is rolled back. Exits 3 if a
    view would pause.
    """
    platform = options.platform()
    if migration is not None:
        _foresee(platform, migration, as_json=as_json)
        return
    found, warnings = platform.plan(), platform.warnings()
    if as_json:
        print_json(
            {
                "differences": [asdict(difference) for difference in found],
                "warnings": [asdict(check) for check in warnings],
            }
        )
    else:
        show(found)
        for check in warnings:
            told = f"{check.name}: {check.message}" + (f"; {check.detail}" if check.detail else "")
            stderr.print(f"[yellow]warning[/] {escape(told)}", soft_wrap=True)
    if found:
        raise typer.Exit(EXIT_UNHEALTHY)


def _foresee(platform: Platform, migration: Path, *, as_json: bool) -> None:
    text = sys.stdin.read() if str(migration) == "-" else _text(migration)
    effects = platform.foresee(text)
    if as_json:
        print_json({"effects": [asdict(effect) for effect in effects]})
    else:
        rows = [
            {
                "view": effect.view,
                "table": "\n".join(effect.changes) or None,
                "does": effect.does,
                "why": effect.fault
                and "\n".join(filter(None, (effect.fault.message, effect.fault.detail))),
                "then": effect.then,
            }
            for effect in effects
        ]
        print_rows(rows, as_json=False, title="", empty="nothing becomes of any view")
    if any(effect.broken for effect in effects):
        raise typer.Exit(EXIT_UNHEALTHY)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read", detail=str(error)) from None


def apply(
    *,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Apply the differences that `headwater plan` shows to the capture of the source.

    Changes nothing else. Exits 3 if a difference remains that another command repairs.
    """
    platform = options.platform()
    changes = platform.apply()
    left = platform.plan()
    if as_json:
        print_json({"changes": changes, "left": [asdict(difference) for difference in left]})
    else:
        for change in changes:
            stdout().print(change, markup=False, soft_wrap=True)
        if not changes:
            stderr.print("nothing to change")
        show(left)
    if left:
        raise typer.Exit(EXIT_UNHEALTHY)


def show(found: Sequence[Difference]) -> None:
    """Prints differences as a table for people, with what repairs those that apply does not."""
    rows = [
        {
            "part": str(difference.part),
            "name": difference.name,
            "property": difference.aspect or None,
            "from": difference.have,
            "to": difference.want,
            "repair": None if difference.repaired else (difference.hint or "see above"),
        }
        for difference in found
    ]
    print_rows(rows, as_json=False, title="", empty="everything is as declared")
