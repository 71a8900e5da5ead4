"""`headwater quarantine`: records that could not be read or applied."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cdc.postgres import session
from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Commands, Json, SourceOptions, Yes
from headwater.cli.output import counted, print_json, print_rows, stderr, stdout
from headwater.cli.sources import for_each
from headwater.errors import UsageError
from headwater.platform.platform import Platform
from projections.changes.quarantine import admin as quarantine_admin
from projections.changes.quarantine.admin import KeySelection
from projections.definition.views import view_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg import Connection

    from projections.changes.quarantine.admin import QuarantinedKey

app = Commands(help="Quarantined records.", no_args_is_help=True)

_WAIT_S: Final = 30.0
_POLL_S: Final = 0.1

View = Annotated[str | None, typer.Option("--view", help="Only this view.")]
InStore = Annotated[str | None, typer.Option("--store", help="Only this store.")]
Key = Annotated[
    str | None,
    typer.Option("--key", help="Only this key: as listed, or the value of a single-column key."),
]
Code = Annotated[str | None, typer.Option("--code", help="Only this error code.")]
Every = Annotated[bool, typer.Option("--all", help="All quarantined records.")]


@app.command("list")
def list_keys(
    *,
    view: View = None,
    store: InStore = None,
    key: Key = None,
    code: Code = None,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """List quarantined keys, each with the cause of its first record."""
    picked = KeySelection(view, store, key, code)
    done = for_each(_platforms(options, view), lambda each: _keys(each, picked))
    rows = [
        {**done.named(source), **_display_row(asdict(each), as_json=as_json)}
        for source, keys in done.results.items()
        for each in keys
    ]
    print_rows(rows, as_json=as_json, title="", empty="nothing waits")
    done.end()


@app.command("show")
def show(
    *,
    view: View = None,
    store: InStore = None,
    key: Key = None,
    code: Code = None,
    values: Annotated[
        bool, typer.Option("--values", help="Also print the records with their rows.")
    ] = False,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Show each quarantined record: its log position, its cause and, on request, its content."""
    with _opened(options, view) as (connection, source, _):
        records = quarantine_admin.records(connection, source, KeySelection(view, store, key, code))
    rows = [_record(asdict(each), values=values) for each in records]
    if as_json or not rows:
        print_rows(rows, as_json=as_json, title="", empty="nothing waits")
        return
    for row in rows:
        stdout().print("\n".join(f"{name:<14}{value}" for name, value in row.items()), markup=False)
        stdout().print()


@app.command("retry")
def retry(
    *,
    view: View = None,
    store: InStore = None,
    key: Key = None,
    code: Code = None,
    everything: Every = False,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Let the job retry quarantined keys, and report the result. Exits 3 if some remain."""
    picked = _narrowed(KeySelection(view, store, key, code), everything=everything)
    with _opened(options, view) as (connection, source, platform):
        retried = quarantine_admin.retry(connection, source, picked)
        runs = platform.job_runs()
        untried, in_vain = retried, set[quarantine_admin.WaitingKey]()
        deadline = time.monotonic() + _WAIT_S
        while runs and untried and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            untried, in_vain = quarantine_admin.still_waiting(connection, source, retried)
    applied = len(retried) - len(untried) - len(in_vain)
    if as_json:
        print_json({"applied": applied, "waiting": len(in_vain), "untried": len(untried)})
    else:
        stderr.print(f"{counted(applied, 'key')} applied, {len(in_vain):,} still wait")
    if untried and not as_json:
        why = "is at something else" if runs else "does not run"
        stderr.print(f"tried later, because the job {why}: {counted(len(untried), 'key')}")
    if untried or in_vain:
        raise typer.Exit(EXIT_UNHEALTHY)


@app.command("drop")
def drop(
    *,
    view: View = None,
    store: InStore = None,
    key: Key = None,
    code: Code = None,
    everything: Every = False,
    yes: Yes = False,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Discard failed records, and apply the records behind them.

    The view then differs from its source until the next change of the key, or until its row is read
    again.
    """
    picked = _narrowed(KeySelection(view, store, key, code), everything=everything)
    if not yes:
        raise UsageError(
            "the view will differ from its source",
            hint=("add --yes to confirm; retry keeps the records"),
        )
    with _opened(options, view) as (connection, source, _):
        dropped, released = quarantine_admin.drop(connection, source, picked)
    if as_json:
        print_json({"dropped": dropped, "released": released})
    else:
        stderr.print(
            f"{counted(dropped, 'record')} given up, {released:,} to be applied behind them"
        )


def _keys(platform: Platform, picked: KeySelection) -> Sequence[QuarantinedKey]:
    with session.connect(platform.source_dsn) as connection:
        return quarantine_admin.keys(connection, platform.project.source.name, picked)


def _platforms(options: SourceOptions, view: str | None) -> list[Platform]:
    return options.platforms([] if view is None else [view_of(view)])


@contextmanager
def _opened(
    options: SourceOptions, view: str | None
) -> Iterator[tuple[Connection[Any], str, Platform]]:
    platform = options.platform(None if view is None else view_of(view))
    with session.connect(platform.source_dsn) as connection:
        yield connection, platform.project.source.name, platform


def _narrowed(picked: KeySelection, *, everything: bool) -> KeySelection:
    if picked.everything and not everything:
        raise UsageError("no keys are selected", hint="use --view, --store, --key, --code or --all")
    return picked


def _display_row(row: dict[str, Any], *, as_json: bool) -> dict[str, Any]:
    row |= {name: row[name].isoformat(timespec="seconds") for name in row if name.endswith("_at")}
    if as_json:
        return row
    short = ("view", "store", "key", "records", "code", "message", "attempts", "first_seen_at")
    return {name: row[name] for name in short}


def _record(row: dict[str, Any], *, values: bool) -> dict[str, Any]:
    value = row.pop("value")
    row |= {
        name: row[name] and row[name].isoformat(timespec="seconds")
        for name in row
        if name.endswith("_at")
    }
    if values:
        row["value"] = None if value is None else bytes(value).decode(errors="backslashreplace")
    return row
