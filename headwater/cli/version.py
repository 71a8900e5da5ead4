"""`headwater view compare`, `cutover`, `rollback`, `drop`: versions of a view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.difference import show
from headwater.cli.options import Json, ProjectOptions, SourceOptions, Yes
from headwater.cli.output import print_json, print_rows, stderr, stdout
from headwater.errors import UsageError

if TYPE_CHECKING:
    from headwater.operations.versions import Switched, Versions
    from headwater.platform.platform import Platform
    from projections.versions.compare import VersionDifference
    from projections.versions.version import ViewVersion

View = Annotated[str, typer.Argument(help="The view.")]
Number = Annotated[
    int | None, typer.Argument(help="Number of the version; default: the newest suitable one.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("compare")(compare)
    app.command("cutover")(cutover)
    app.command("rollback")(rollback)
    app.command("drop")(drop)


def compare(
    name: View,
    number: Number = None,
    *,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Compare a version with the active one, both at one position.

    Excludes differences that the changed definition explains. Exits 3 if any other remains.
    """
    difference = opened(options, name).compare(name, number)
    if as_json:
        print_json(compared(difference))
    else:
        show_difference(difference)
    if not difference.same:
        raise typer.Exit(EXIT_UNHEALTHY)


def cutover(
    name: View,
    number: Number = None,
    *,
    accept_differences: Annotated[
        bool,
        typer.Option(
            "--accept-differences",
            help="Accept unexplained differences, and derived views that would pause.",
        ),
    ] = False,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Make another version of a view active, in all stores.

    Compares both versions first, and analyses the queries of derived views over the new version's
    columns. If a derived view would pause, the cutover is refused unless you accept it. The former
    version is kept up to date until it is dropped, and headwater view rollback makes it active
    again.
    """
    versions = opened(options, name)
    _print_switched(
        versions.cutover(name, number, accept_differences=accept_differences), as_json=as_json
    )


def rollback(
    name: View,
    *,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Make the previously active version of a view active again.

    Names derived views that do not fit that version; they pause.
    """
    _print_switched(opened(options, name).rollback(name), as_json=as_json)


def drop(
    name: View,
    number: Annotated[
        int | None,
        typer.Argument(
            help="Number of the version; default: all versions of a view that is no longer "
            "declared."
        ),
    ] = None,
    *,
    yes: Yes = False,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Remove an inactive or incomplete version from every store.

    Without a number, removes the whole view, including the active version. This is refused while
    the view is declared. A view that is declared again later is built again.
    """
    versions = opened(options, name)
    subject = f"view {name}" if number is None else f"version {number} of view {name}"
    if not yes:
        raise UsageError(f"{subject} would be removed from every store", hint="--yes")
    if number is None:
        gone = [document(each) for each in versions.withdraw(name)]
    else:
        gone = [document(versions.drop(name, number))]
    if as_json:
        print_json(gone if number is None else gone[0])
    else:
        stdout().print(f"{subject} is removed", markup=False)


def row_of(version: ViewVersion) -> dict[str, Any]:
    """The JSON form of a version; see `line_of`."""
    from projections.archive.progress_note import figures_of  # noqa: PLC0415  # loads the imports of replays

    replayed = version.replayed if version.state == "building" else None
    figures = None if replayed is None else figures_of(replayed.progress)
    return {
        "view": version.view,
        "version": version.number,
        "state": "switching" if version.switching else str(version.state),
        "place": version.physical_name,
        "progress": None if figures is None else figures._asdict(),
        "made_at": None if version.made_at is None else version.made_at.isoformat("T", "seconds"),
        "why": "; ".join(version.reasons) or None,
        "fault": None if version.fault is None else version.fault.code,
    }


def line_of(version: ViewVersion) -> dict[str, Any]:
    """The line of a version in a listing; see `row_of`."""
    row = row_of(version)
    return {**row, "progress": None if row["progress"] is None else _far(**row["progress"])}


def _far(done: int, total: int, share: float | None, seconds_left: float | None, lap: int) -> str:
    counts = f"{f'catch-up round {lap}: ' if lap else ''}{done:,} of {total:,}"
    if share is None:
        return f"{counts}, scanned"
    left = "" if seconds_left is None else f", about {seconds_left:,.0f} s left"
    return f"{counts} ({share:.0%}){left}"


def document(version: ViewVersion) -> dict[str, Any]:
    """The line that is printed for a version after a command."""
    replayed = version.replayed
    figures = {"records": replayed.records, "seconds": replayed.seconds} if replayed else None
    return {**row_of(version), "replayed": figures}


def _print_switched(switched: Switched, *, as_json: bool) -> None:
    if as_json:
        difference = switched.difference
        print_json(
            {
                "view": switched.view,
                "version": switched.number,
                "difference": None if difference is None else compared(difference),
                "stand_still": dict(switched.stand_still),
            }
        )
        return
    if switched.difference is not None:
        show_difference(switched.difference)
    stdout().print(f"readers of {switched.view} see version {switched.number}", markup=False)
    show_still(switched)


def show_still(switched: Switched) -> None:
    """Prints the views that do not fit a version from which they are computed."""
    for name, why in switched.stand_still.items():
        does = "is paused" if switched.moved else "would be paused"
        line = f"{name} {does} with its present rows: {why}"
        stderr.print(line, markup=False, soft_wrap=True)


def show_difference(difference: VersionDifference) -> None:
    """Prints how two versions differ."""
    if difference.incomparable is not None:
        stderr.print(
            f"they are not compared: {difference.incomparable}", markup=False, soft_wrap=True
        )
        return
    show(difference.unexplained)
    stderr.print(f"compared in {difference.store} at {difference.at}")
    if difference.stands_since:
        stderr.print(
            f"the active version is paused since {difference.stands_since}, as its table changed:"
            " rows that were written since differ"
        )
    if difference.explained:
        rows = [{"explained by": reason, "count": n} for reason, n in difference.explained.items()]
        print_rows(rows, as_json=False, title="explained by the definition", empty="")


def compared(difference: VersionDifference) -> dict[str, Any]:
    """The JSON form of a difference between two versions."""
    of_rows = difference.unexplained
    return {
        "same": difference.same,
        "at": difference.at,
        "store": None if difference.store is None else str(difference.store),
        "incomparable": difference.incomparable,
        "only_new": of_rows.appeared,
        "only_old": of_rows.gone,
        "changed": of_rows.changed,
        "by_column": dict(of_rows.by_column),
        "columns_added": of_rows.columns_added,
        "columns_gone": of_rows.columns_gone,
        "explained": difference.explained,
        "stands_since": difference.stands_since,
        "examples": {
            "only_new": of_rows.examples_appeared,
            "only_old": of_rows.examples_gone,
            "changed": [each.key for each in of_rows.examples_changed],
        },
    }


def opened(options: ProjectOptions, view: str) -> Versions:
    """Opens the versions of the views of a view's source."""
    return versions_of(options.platform(view))


def versions_of(platform: Platform) -> Versions:
    """Opens the versions of a source's views."""
    from headwater.operations.versions import Versions  # noqa: PLC0415  # half a second of import

    return Versions(platform)
