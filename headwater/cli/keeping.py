"""`headwater events retain`, `forget-keys`, `delete`: retention of the log."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from eventstore.postgres.retention import PostgresRetention
from eventstore.upkeep.compaction import StreamFold
from eventstore.upkeep.retention import RetentionRule
from headwater.cli.options import Json, LogOptions, Yes
from headwater.cli.output import counted, print_json
from headwater.errors import UsageError
from headwater.operations.events import decider_of, open_store, tenant_of


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("retain")(retain)
    app.command("forget-keys")(forget_keys)
    app.command("delete")(delete)


def retain(
    category: Annotated[str, typer.Argument(help="The category, such as order.")],
    *,
    closing: Annotated[
        list[str] | None,
        typer.Option("--closing", help="Type of the event that closes a stream."),
    ] = None,
    compact_after_days: Annotated[
        float | None,
        typer.Option("--compact-after-days", help="Compact closed streams of this age.", min=0),
    ] = None,
    drop_after_days: Annotated[
        float | None,
        typer.Option("--drop-after-days", help="Drop archived originals of this age.", min=0),
    ] = None,
    fold: Annotated[
        bool, typer.Option("--fold", help="Keep the state of closed streams; needs the decider.")
    ] = False,
    yes: Yes = False,
    options: LogOptions,
    as_json: Json = False,
) -> None:
    """Apply a retention rule to the streams of a category. The command can be repeated.

    Drops archived originals only with --yes, otherwise counts them. Events that are not sealed are
    kept.

    Example: headwater events retain order --closing order.closed --compact-after-days 90
    """
    rule = RetentionRule(
        category, frozenset(closing or ()), _days(compact_after_days), _days(drop_after_days)
    )
    database = options.event_store()
    whose = tenant_of(database, options.tenant)
    retention = PostgresRetention(database.dsn)
    if fold:
        with open_store(database, options.tenant) as store:
            folding = StreamFold(decider_of(database, category), store.codec, whose)
            report = retention.apply(rule, tenant=whose, fold=folding, drop_archived=yes)
    else:
        report = retention.apply(rule, tenant=whose, drop_archived=yes)
    counts = {
        name: getattr(report, name)
        for name in ("streams", "archived", "dropped", "droppable", "kept")
    }
    refused = [{"stream": one.stream, "code": one.error.code} for one in report.refused]
    if as_json:
        print_json({**counts, "refused": refused})
    else:
        typer.echo(", ".join(f"{name} {count:,}" for name, count in counts.items()))
        for one in report.refused:
            typer.echo(f"{one.stream}: {one.error.code} {one.error}", err=True)
    if report.refused:
        raise typer.Exit(1)


def forget_keys(
    *,
    older_than_days: Annotated[
        float,
        typer.Option(
            "--older-than-days", help="Minimum age; longer than any caller retries.", min=0
        ),
    ],
    yes: Yes = False,
    options: LogOptions,
) -> None:
    """Delete old idempotency keys. A command sent again with such a key is a new command."""
    if not yes:
        raise UsageError(
            "a command that is repeated with a deleted key is handled again",
            hint="add --yes to confirm",
        )
    database = options.event_store()
    age = timedelta(days=older_than_days)
    done = PostgresRetention(database.dsn).forget_keys(
        age, tenant=tenant_of(database, options.tenant)
    )
    typer.echo(f"{counted(done, 'key')} forgotten")


def delete(
    stream: Annotated[str, typer.Argument(help="The stream, such as order-42.")],
    *,
    reason: Annotated[
        str, typer.Option("--reason", help="The reason, which stays in the log; no personal data.")
    ],
    yes: Yes = False,
    options: LogOptions,
) -> None:
    """Delete a stream's events permanently, and leave one event with the reason.

    Seal the events first (headwater events seal), so that the audit can verify the log afterwards.
    """
    if not yes:
        raise UsageError("its events are deleted permanently", hint="add --yes to confirm")
    database = options.event_store()
    retention = PostgresRetention(database.dsn)
    done = retention.delete_stream(tenant_of(database, options.tenant), stream, reason=reason)
    typer.echo(f"{counted(done, 'event')} deleted")


def _days(days: float | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)
