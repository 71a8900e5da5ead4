"""`headwater token` and `headwater view wait`: to read one's own writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cdc.position_token import PositionToken
from headwater.cli.options import TIMEOUT_S, Json, ProjectOptions, SourceOptions
from headwater.cli.output import print_json, stderr
from projections.definition.views import Store

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headwater.platform.platform import Platform

_JOINED: Final = ","
"""Between the tokens of several sources."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("token")(token)


def token(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Print a position token that covers everything committed at the source.

    In a project of several sources, prints a token for each, joined by commas.

    Example: headwater view wait orders "$(headwater token)"
    """
    from headwater.reading.views import Views  # noqa: PLC0415  # needs the extra

    position_tokens = []
    for platform in options.platforms():
        with Views(platform) as views:
            position_tokens.append(views.token())
    if not as_json:
        typer.echo(_JOINED.join(map(str, position_tokens)))
        return
    positions = [
        {"token": str(each), "source": each.source, "epoch": each.epoch, "position": str(each.lsn)}
        for each in position_tokens
    ]
    vector = {"token": _JOINED.join(map(str, position_tokens)), "positions": positions}
    print_json(positions[0] if len(positions) == 1 else vector)


def tokens(text: str) -> list[PositionToken]:
    """Reads tokens as `headwater token` prints them: one of each source.

    Raises:
        TokenMalformedError: One of them is none.
    """
    return [PositionToken.parse(each) for each in text.split(_JOINED)]


def await_view(
    platform: Platform,
    view: str,
    wanted: Sequence[PositionToken],
    stores: Collection[Store],
    timeout_s: float,
) -> None:
    """Waits until stores of a view have every change committed before some tokens.

    Of several tokens, this leaves out those of sources from which the view has no rows.

    Raises:
        BehindError: It is behind after that many seconds.
        TokenError: A token means nothing to the view.
    """
    from headwater.platform.platform import Platform  # noqa: PLC0415  # needs the extra
    from headwater.reading.views import Views  # noqa: PLC0415  # needs the extra

    whole = platform.project.whole or platform.project
    known = whole.declarations.sources_of(view) if view in whole.views else ()
    meant = [each for each in wanted if each.source in known] or wanted
    deadline = time.monotonic() + timeout_s
    for each in meant:
        part = whole.part(each.source) if each.source in known else platform.project
        with Views(Platform(part, platform.config)) as views:
            left_s = max(0.0, deadline - time.monotonic())
            views[view].wait_for(each, stores=stores, timeout_s=left_s)


def reach(
    platform: Platform, at_least: str | None, view: str, store: Store, timeout_s: float
) -> list[PositionToken]:
    """Waits until a store of a view has every change committed before tokens, if any are given.

    Raises:
        BehindError: It is behind after that many seconds.
    """
    if at_least is None:
        return []
    wanted = tokens(at_least)
    await_view(platform, view, wanted, {store}, timeout_s)
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
    wanted = tokens(token)
    await_view(options.platform(name), name, wanted, to or (), timeout_s)
    if as_json:
        print_json({"view": name, "reached": token})
    else:
        reached = ", ".join(str(each.lsn) for each in wanted)
        stderr.print(f"{name} has everything up to {reached}")
