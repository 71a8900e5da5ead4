"""`headwater token` and `headwater view wait`: to read what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc.position_token import PositionToken
from headwater.cli.options import TIMEOUT_S, Json, ProjectOptions, SourceOptions
from headwater.cli.output import print_json, stderr
from projections.definition.views import Store

if TYPE_CHECKING:
    from headwater.platform.platform import Platform


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("token")(token)


def token(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Print a position token that covers everything committed at the source.

    Example: headwater view wait orders "$(headwater token)"
    """
    from headwater.reading.views import Views  # noqa: PLC0415  # needs the extra

    with Views(options.platform()) as views:
        found = views.token()
    if as_json:
        said = {"token": str(found), "source": found.source, "epoch": found.epoch}
        print_json(said | {"position": str(found.lsn)})
    else:
        typer.echo(str(found))


def reach(
    platform: Platform, at_least: str | None, view: str, store: Store, timeout_s: float
) -> PositionToken | None:
    """Waits until a view has in a store what was committed before a token, if one is given.

    Raises:
        BehindError: It is behind after that many seconds.
    """
    if at_least is None:
        return None
    from headwater.reading.views import Views  # noqa: PLC0415  # needs the extra

    wanted = PositionToken.parse(at_least)
    with Views(platform) as views:
        views[view].wait_for(wanted, stores={store}, timeout_s=timeout_s)
    return wanted


def wait(
    name: Annotated[str, typer.Argument(help="The view.")],
    token: Annotated[str, typer.Argument(help="A token from headwater token or an application.")],
    *,
    to: Annotated[
        list[Store] | None,
        typer.Option("--store", help="Only in this store; repeatable."),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Maximum wait in seconds.")
    ] = TIMEOUT_S,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Wait until a view has everything that a token covers.

    Exits 3 if the wait times out, and reports the stage that is behind and its lag.
    """
    from headwater.reading.views import Views  # noqa: PLC0415  # needs the extra

    wanted = PositionToken.parse(token)
    with Views(options.platform(name)) as views:
        views[name].wait_for(wanted, stores=to or (), timeout_s=timeout_s)
    if as_json:
        print_json({"view": name, "reached": token})
    else:
        stderr.print(f"{name} has everything up to {wanted.lsn}")
