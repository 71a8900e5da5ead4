"""`headwater plan` and `headwater apply`: differences from the declared state, and their repair."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.hints import completed
from headwater.cli.options import Json, SourceOptions
from headwater.cli.output import escape, print_json, print_rows, stderr, stdout
from headwater.cli.sources import for_each
from headwater.errors import UsageError
from headwater.platform.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.postgres.check import Check
    from cdc.upkeep.difference import Difference
    from headwater.cli.sources import PerSource
    from projections.definition.views import Store


_NAMED_MAX: Final = 5
_AS_DECLARED: Final = "everything is as declared"

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
    options: SourceOptions,
    migration: Migration = None,
    as_json: Json = False,
) -> None:
    """Show differences from the declared state: connector, publication, slot, topics, views.

    Changes nothing; masks secrets. Exits 3 if there is a difference. Works before the first `up`,
    too, and while the servers of the folder are down: it then names the parts that it cannot see,
    and exits 3. Views that the running job is filling for the first time are listed apart and are
    no difference: right after `headwater up` that may be all of them.

    With --migration: show the effect of the given statements on the views. The statements run at
    the source on empty copies of the tables, in a transaction that is rolled back. Exits 3 if a
    view would pause.
    """
    if migration is not None:
        _migration_effects(options.platform(), migration, as_json=as_json)
        return
    done = for_each(
        options.platforms(),
        lambda each: (each.plan(), each.warnings(), each.unseen(), each.building()),
    )
    if as_json:
        print_json(
            {
                "differences": _documents(done, 0),
                "warnings": _documents(done, 1),
                "unseen": _documents(done, 2),
                "building": [
                    {**done.named(source), "view": view, "store": store}
                    for source, (*_, building) in done.results.items()
                    for view, store in building
                ],
            }
        )
    else:
        for source, (differences, warnings, unseen, building) in done.results.items():
            done.heading(source)
            show(differences, done.about(source), "" if unseen else _AS_DECLARED)
            for part in unseen:
                text = f"{part.name} {part.message}; {_hint(part, done.about(source))}"
                stderr.print(f"[yellow]not seen[/] {escape(text)}", soft_wrap=True)
            print_building(building, "; headwater view status shows those that are there")
            for check in warnings:
                _warn(check)
    different = any(differences or unseen for differences, _, unseen, _ in done.results.values())
    done.end(EXIT_UNHEALTHY if different else 0)


def print_building(places: Sequence[tuple[str, Store]], hint: str = "") -> None:
    """Prints which views the job is filling for the first time.

    Args:
        places: Views and stores.
        hint: End of the line.
    """
    if not places:
        return
    views = list(dict.fromkeys(view for view, _ in places))
    more = len(views) - _NAMED_MAX
    named = ", ".join(views[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    stores = ", ".join(sorted({str(store) for _, store in places}))
    text = f"in {stores}: {named}{hint}"
    stderr.print(f"[dim]being filled[/] {escape(text)}", soft_wrap=True)


def _warn(check: Check) -> None:
    text = f"{check.name}: {check.message}" + (f"; {check.detail}" if check.detail else "")
    stderr.print(f"[yellow]warning[/] {escape(text)}", soft_wrap=True)


def _documents(done: PerSource[Any], place: int) -> list[dict[str, Any]]:
    """The JSON form of one part of each source's results."""
    return [
        {**done.named(source), **asdict(each), "hint": _hint(each, done.about(source))}
        for source, parts in done.results.items()
        for each in parts[place]
    ]


def _hint(each: Difference | Check, source: str | None) -> str | None:
    return each.hint and completed(each.hint, source)


def _migration_effects(platform: Platform, migration: Path, *, as_json: bool) -> None:
    text = sys.stdin.read() if str(migration) == "-" else _text(migration)
    effects = platform.migration_effects(text)
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
        print_rows(rows, as_json=False, title="", empty="no view is affected")
    if any(effect.broken for effect in effects):
        raise typer.Exit(EXIT_UNHEALTHY)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read", detail=str(error)) from None


def apply(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Apply the differences that `headwater plan` shows to the capture of each source.

    Changes nothing else. Exits 3 if a difference remains that another command repairs.
    """
    done = for_each(options.platforms(), lambda each: (each.apply(), each.plan()))
    if as_json:
        changes = [change for changes, _ in done.results.values() for change in changes]
        print_json({"changes": changes, "left": _documents(done, 1)})
    else:
        for source, (changes, left) in done.results.items():
            done.heading(source)
            for change in changes:
                stdout().print(change, markup=False, soft_wrap=True)
            if not changes:
                stderr.print("nothing to change")
            show(left, done.about(source))
    done.end(EXIT_UNHEALTHY if any(left for _, left in done.results.values()) else 0)


def show(
    differences: Sequence[Difference], source: str | None = None, empty: str = _AS_DECLARED
) -> None:
    """Prints differences as a table, with the commands for those that `apply` does not repair.

    Args:
        differences: The differences.
        source: Their source, if the project has several.
        empty: Printed if there are none.
    """

    def repair(difference: Difference) -> str | None:
        return None if difference.repaired else completed(difference.hint or "see above", source)

    rows = [
        {
            "part": str(difference.part),
            "name": difference.name,
            "property": difference.aspect or None,
            "from": difference.have,
            "to": difference.want,
            "repair": repair(difference),
        }
        for difference in differences
    ]
    print_rows(rows, as_json=False, title="", empty=empty)
