"""`headwater events subscriptions`, `rebuild`, `parked`: subscriptions and their parked streams."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Annotated, Any, Final

import typer

from eventstore.model.names import check_stream
from eventstore.subscription import AsyncSubscription
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.rebuild import async_rebuild
from eventstore.subscription.rebuild import rebuild as rebuild_tables
from headwater.cli.options import Commands, Json, LogOptions, Yes
from headwater.cli.output import counted, print_json, print_rows
from headwater.errors import UnhealthyError, UsageError
from headwater.operations.events import open_store, subscription_of, tenant_of

Name = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription.")]

OneStream = Annotated[str | None, typer.Argument(metavar="[STREAM]", help="The parked stream.")]
Process = Annotated[
    str | None, typer.Option("--process", metavar="ID", help="The process of the parked timer.")
]
Timer = Annotated[str | None, typer.Option("--timer", metavar="NAME", help="The parked timer.")]

parked = Commands(help="Parked streams and timers, whose handler failed.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("subscriptions")(subscriptions)
    app.command("rebuild")(rebuild)
    app.add_typer(parked, name="parked")


def subscriptions(
    *,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """Show the position and lag of each partition of each subscription."""
    with _open(options) as control:
        partitions = [one for name in control.names() for one in control.status(name)]
    rows = [_row(asdict(one)) for one in partitions]
    print_rows(rows, as_json=as_json, title="", empty="no subscription has ever run")


def rebuild(
    name: Name,
    *,
    after: Annotated[
        int | None,
        typer.Option("--after", help="Only events after this global position.", min=0),
    ] = None,
    yes: Yes = False,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """Rebuild a projection's tables from the log, then replace the rows that differ.

    Runners may continue. Readers see the old rows until one transaction replaces them. Effects
    outside the database are not performed. A module that the settings name must declare the
    projection or its subscription.

    Example: headwater events rebuild balances --yes
    """
    if not yes:
        raise UsageError(
            "the rebuild removes rows that the log does not produce",
            hint="add --yes to confirm",
        )
    database = options.event_store()
    subscription = subscription_of(database, name)
    with open_store(database, options.tenant) as store:
        if isinstance(subscription, AsyncSubscription):
            work = async_rebuild(
                database.dsn,
                replace(subscription, tenant=store.tenant),
                codec=store.codec,
                after=after,
            )
            done = asyncio.run(work)
        else:
            done = rebuild_tables(database.dsn, subscription, store=store, after=after)
    if as_json:
        print_json(asdict(done))
    else:
        typer.echo(
            f"{counted(done.events, 'event')} handled, "
            f"{counted(done.removed, 'row')} removed, {done.added:,} added"
        )


@parked.command("list")
def list_parked(
    name: Annotated[
        str | None, typer.Argument(metavar="[SUBSCRIPTION]", help="The subscription; default: all.")
    ] = None,
    *,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """List parked streams and timers."""
    with _open(options) as control:
        names = control.names() if name is None else [name]
        items = [
            {**_NOTHING, "subscription": one, **waiting}
            for one in names
            for waiting in (
                *map(asdict, control.parked(one)),
                *map(asdict, control.parked_timers(one)),
            )
        ]
    rows = [_row(one) for one in items]
    print_rows(rows, as_json=as_json, title="", empty="nothing is parked")


@parked.command("retry")
def retry(
    name: Name,
    stream: OneStream = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="All parked streams and timers.")
    ] = False,
    error_type: Annotated[
        str | None,
        typer.Option(
            "--error-type",
            help="Only those that failed with this class, such as KeyError, or code.",
        ),
    ] = None,
    process: Process = None,
    timer: Timer = None,
    options: LogOptions,
) -> None:
    """Let the subscription's runner retry parked events and timers, in order.

    Example: headwater events parked retry mail --error-type ConnectionError
    """
    several = everything or error_type is not None
    which = _which(stream, process, timer, several=several)
    with _open(options) as control:
        if several:
            count = control.retry_all(name, error_type=error_type)
            typer.echo(f"its runner tries {count:,} again" if count else "nothing of it waits")
            return
        if stream is not None:
            done = control.retry(name, stream)
        else:
            done = control.retry_timer(name, process or "", timer or "")
    if not done:
        raise _not_parked(name, which)
    typer.echo("its runner retries it")


@parked.command("drop")
def drop(
    name: Name,
    stream: OneStream = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also discard the later events of the stream.")
    ] = False,
    process: Process = None,
    timer: Timer = None,
    yes: Yes = False,
    options: LogOptions,
) -> None:
    """Discard a failed event or timer; it will never be handled."""
    which = _which(stream, process, timer)
    if not yes:
        raise UsageError("it will never be handled", hint="add --yes to confirm")
    with _open(options) as control:
        if stream is not None:
            dropped = control.drop(name, stream, everything=everything)
        else:
            dropped = int(control.drop_timer(name, process or "", timer or ""))
    if not dropped:
        raise _not_parked(name, which)
    typer.echo(
        f"{counted(dropped, 'event')} given up" if stream is not None else "the timer is given up"
    )


_NOTHING: Final = dict.fromkeys(
    (
        *("subscription", "stream", "process_id", "timer", "state", "attempts", "error_code"),
        *("error_type", "error_location", "retry_at", "global_position", "parked_at", "waiting"),
        "due_at",
    )
)
"""A row of the list: a stream's or a timer's."""


def _open(options: LogOptions) -> Subscriptions:
    database = options.event_store()
    return Subscriptions(database.dsn, tenant=tenant_of(database, options.tenant))


def _which(
    stream: str | None, process: str | None, timer: str | None, *, several: bool = False
) -> str:
    """Describes the stream, timer or selection of a command.

    Raises:
        UsageError: The command names none, or more than one.
    """
    if (process is None) != (timer is None):
        raise UsageError("a timer needs --process ID and --timer NAME")
    if (stream is not None) + (timer is not None) + several != 1:
        raise UsageError(
            "name one stream, or one timer by --process and --timer",
            hint="retry also takes --all and --error-type",
        )
    if stream is not None:
        return f"stream {check_stream(stream)}"
    return f"timer {timer} of process {process}"


def _not_parked(name: str, which: str) -> UnhealthyError:
    return UnhealthyError(
        f"{which} is not parked in subscription {name}",
        hint="headwater events parked list",
    )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.isoformat() if hasattr(value, "isoformat") else value
        for key, value in row.items()
    }
