"""`headwater reactor`: effects of events: list, pause and retry them, or see them beforehand."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import typer

from eventstore.model.names import check_stream
from eventstore.reactor.control import Reactors
from eventstore.reactor.dry_run import dry_run
from headwater.cli import reactor_changes
from headwater.cli.options import Commands, Json, LogOptions, Yes
from headwater.cli.output import counted, print_rows
from headwater.errors import UnhealthyError, UsageError
from headwater.operations.events import open_store, reactor_of, tenant_of

app = Commands(
    help="Effects on the outside, and commands, that follow from events.", no_args_is_help=True
)
app.add_typer(reactor_changes.app, name="changes")

Name = Annotated[str, typer.Argument(metavar="REACTOR", help="Its name.")]

_LISTED = 1_000


@app.command("list")
def list_reactors(
    *,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """List the reactors: running, waiting for a dependency, paused or stopped, and how far."""
    with _open(options) as control:
        rows = [_row(asdict(one)) for one in control.all()]
    print_rows(rows, as_json=as_json, title="", empty="no reactor has ever run")


@app.command("pause")
def pause(
    name: Name,
    *,
    options: LogOptions,
) -> None:
    """Pause a reactor in all processes. Once this returns, it makes no effect until `resume`."""
    with _open(options) as control:
        control.pause(name)
    typer.echo(f"{name} is paused")


@app.command("resume")
def resume(
    name: Name,
    *,
    options: LogOptions,
) -> None:
    """Resume a paused reactor from its position."""
    with _open(options) as control:
        control.resume(name)
    typer.echo(f"{name} is resumed")


@app.command("parked")
def list_parked(
    name: Annotated[
        str | None, typer.Argument(metavar="[REACTOR]", help="Its name; all if left out.")
    ] = None,
    *,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """List the streams that wait because an effect failed."""
    with _open(options) as control:
        names = [one.name for one in control.all()] if name is None else [name]
        rows = [
            _row({"reactor": one, **asdict(waiting)})
            for one in names
            for waiting in control.parked(one)
        ]
    print_rows(rows, as_json=as_json, title="", empty="nothing is parked")


@app.command("retry")
def retry(
    name: Name,
    stream: Annotated[
        str | None, typer.Argument(metavar="[STREAM]", help="The stream that waits.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All streams that wait.")] = False,
    error_type: Annotated[
        str | None,
        typer.Option(
            "--error-type",
            help="All that failed with it: a class such as EffectRefusedError, or a code.",
        ),
    ] = None,
    options: LogOptions,
) -> None:
    """Have effects that failed retried, with the same keys and in order.

    Example: headwater reactor retry mail --error-type EffectRefusedError
    """
    several = everything or error_type is not None
    if (stream is not None) == several:
        raise UsageError("name one stream, or --all, or an --error-type")
    with _open(options) as control:
        if stream is None:
            count = control.retry_all(name, error_type=error_type)
            typer.echo(f"its runner tries {count:,} again" if count else "nothing of it waits")
            return
        if not control.retry(name, check_stream(stream)):
            raise _not_parked(name, stream)
    typer.echo("its runner tries it again")


@app.command("drop")
def drop(
    name: Name,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream that waits.")],
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the events that wait behind the failed one.")
    ] = False,
    yes: Yes = False,
    options: LogOptions,
) -> None:
    """Discard the effects of the event that failed: they will never be made."""
    if not yes:
        raise UsageError("its effects will never be made", hint="add --yes if you mean it")
    with _open(options) as control:
        dropped = control.drop(name, check_stream(stream), everything=everything)
    if not dropped:
        raise _not_parked(name, stream)
    typer.echo(f"{counted(dropped, 'event')} given up")


@app.command("dry-run")
def show_effects(
    name: Name,
    *,
    after: Annotated[int, typer.Option("--after", help="After this global position.", min=0)] = 0,
    through: Annotated[
        int | None, typer.Option("--through", help="Up to this global position.", min=0)
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="So many effects at most.", min=1)
    ] = _LISTED,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """List the effects that a part of the log would have, with their keys; none is made.

    The reactor is in a module that the settings name. It need not run, and nothing moves.

    Example: headwater reactor dry-run mail --after 1000 --through 2000
    """
    database = options.event_store()
    reactor = reactor_of(database, name)
    with open_store(database, options.tenant) as store:
        planned = dry_run(store, reactor, after=after, through=through)
        rows = [asdict(one) for one in islice(planned, limit)]
    print_rows(rows, as_json=as_json, title="", empty="these events have no effects")


def _open(options: LogOptions) -> Reactors:
    database = options.event_store()
    return Reactors(database.dsn, tenant=tenant_of(database, options.tenant))


def _not_parked(name: str, stream: str) -> UnhealthyError:
    return UnhealthyError(
        f"stream {stream} does not wait in reactor {name}", hint="headwater reactor parked"
    )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.isoformat() if hasattr(value, "isoformat") else value
        for key, value in row.items()
    }
