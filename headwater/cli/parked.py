"""`headwater events subscriptions` and `parked`: who reads the log how far, and what waits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from eventstore.names import check_stream
from eventstore.subscription.control import Subscriptions
from headwater.cli.options import Config, Dsn, HomeFolder, Json, Profile, Tenant, Yes
from headwater.cli.output import print_rows
from headwater.errors import UnhealthyError, UsageError
from headwater.events import find_store, tenant_of

Name = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Its name.")]
Stream = Annotated[str, typer.Argument(help="The stream that waits.")]

parked = typer.Typer(help="Streams that wait because a handler failed.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("subscriptions")(subscriptions)
    app.add_typer(parked, name="parked")


def subscriptions(
    *,
    tenant: Tenant = None,
    dsn: Dsn = None,
    config: Config = None,
    home: HomeFolder = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Show how far each subscription has come, partition by partition."""
    with _open(dsn, tenant, config, home, profile) as control:
        found = [one for name in control.names() for one in control.status(name)]
    rows = [_row(asdict(one)) for one in found]
    print_rows(rows, as_json=as_json, title="", empty="no subscription has ever run")


@parked.command("list")
def list_parked(
    name: Annotated[
        str | None, typer.Argument(metavar="[SUBSCRIPTION]", help="Its name; all if left out.")
    ] = None,
    *,
    tenant: Tenant = None,
    dsn: Dsn = None,
    config: Config = None,
    home: HomeFolder = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """List the streams whose first waiting event failed."""
    with _open(dsn, tenant, config, home, profile) as control:
        names = control.names() if name is None else [name]
        found = [(one, stream) for one in names for stream in control.parked(one)]
    rows = [{"subscription": one, **_row(asdict(stream))} for one, stream in found]
    print_rows(rows, as_json=as_json, title="", empty="nothing is parked")


@parked.command("retry")
def retry(
    name: Name,
    stream: Stream,
    *,
    tenant: Tenant = None,
    dsn: Dsn = None,
    config: Config = None,
    home: HomeFolder = None,
    profile: Profile = None,
) -> None:
    """Have a stream's parked events delivered again, in order, by the subscription's runner."""
    check_stream(stream)
    with _open(dsn, tenant, config, home, profile) as control:
        if not control.retry(name, stream):
            raise _not_parked(name, stream)
    typer.echo("its runner tries it again")


@parked.command("drop")
def drop(
    name: Name,
    stream: Stream,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the events that wait behind the failed one.")
    ] = False,
    yes: Yes = False,
    tenant: Tenant = None,
    dsn: Dsn = None,
    config: Config = None,
    home: HomeFolder = None,
    profile: Profile = None,
) -> None:
    """Give up the event that failed: the subscription will never have seen it."""
    check_stream(stream)
    if not yes:
        raise UsageError(
            "the subscription will never have seen the event", hint="add --yes if you mean it"
        )
    with _open(dsn, tenant, config, home, profile) as control:
        dropped = control.drop(name, stream, everything=everything)
    if not dropped:
        raise _not_parked(name, stream)
    typer.echo(f"{dropped:,} events given up")


def _open(
    dsn: str | None, tenant: str | None, config: Config, home: HomeFolder, profile: Profile
) -> Subscriptions:
    database = find_store(dsn, config=config, home=home, profile=profile)
    return Subscriptions(database.dsn, tenant=tenant_of(database, tenant))


def _not_parked(name: str, stream: str) -> UnhealthyError:
    return UnhealthyError(
        f"stream {stream} does not wait in subscription {name}",
        hint="headwater events parked list",
    )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.isoformat() if hasattr(value, "isoformat") else value
        for key, value in row.items()
    }
