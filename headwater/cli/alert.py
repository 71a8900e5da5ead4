"""`headwater alert`: the reported rows of each alert, and the messages that wait to be sent."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.postgres import session
from foundation.errors import EXIT_UNHEALTHY
from foundation.suggestion import did_you_mean
from headwater.cli.options import Commands, Json, ProjectOptions, SourceOptions
from headwater.cli.output import print_rows
from headwater.cli.sources import for_each
from headwater.errors import UsageError
from headwater.platform.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projections.alerting.tables import AlertRowState, PendingMessages
    from projections.definition.alert import Alert

app = Commands(help="Alerts on rows that meet a condition.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="ALERT", help="The alert.")]


@app.command("list")
def list_alerts(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """List the alerts, with their open rows and the messages that wait to be sent."""
    from projections.alerting import tables as alerting_tables  # noqa: PLC0415  # as every command that needs it

    def rows_of(platform: Platform) -> list[dict[str, Any]]:
        source = platform.project.source.name
        if not platform.project.declarations.alerts:
            return []
        platform.require_captured()
        with session.connect(platform.source_dsn) as connection:
            row_states = list(alerting_tables.row_states(connection, source))
            pending_messages = alerting_tables.pending_messages(connection, source)
        return [
            _row(alert, row_states, pending_messages)
            for alert in platform.project.declarations.alerts.values()
        ]

    done = for_each(options.platforms(), rows_of)
    rows = [row for rows in done.results.values() for row in rows]
    print_rows(rows, as_json=as_json, title="", empty="no alert is declared")
    done.end()


def _row(
    alert: Alert, row_states: Sequence[AlertRowState], pending_messages: Sequence[PendingMessages]
) -> dict[str, Any]:
    states = [str(each.state) for each in row_states if each.alert == alert.name]
    left = [each for each in pending_messages if each.alert == alert.name]
    return {
        "alert": alert.name,
        "view": alert.view,
        "where": alert.where or "every row",
        "pending": states.count("pending"),
        "open": len(states) - states.count("pending"),
        "waiting": sum(each.messages for each in left),
        "why": "; ".join(f"{each.channel}: {each.code}" for each in left if each.code),
    }


@app.command("show")
def show(
    name: Name,
    *,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """List the rows that an alert has reported, or will report if they stay unchanged."""
    from projections.alerting import tables as alerting_tables  # noqa: PLC0415

    platform = _platform(options, name)
    alert = _alert(platform, name)
    platform.require_captured()
    with session.connect(platform.source_dsn) as connection:
        states = list(alerting_tables.row_states(connection, platform.project.source.name))
    rows = [
        {"key": each.key, "state": str(each.state), "since": each.since.isoformat()}
        for each in states
        if each.alert == alert.name
    ]
    print_rows(rows, as_json=as_json, title="", empty="no row meets its condition")


@app.command("check")
def check(
    name: Name,
    *,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """List the rows that meet an alert's condition now; send nothing."""
    from projections.alerting import evaluator  # noqa: PLC0415

    platform = _platform(options, name)
    alert, spec = _alert(platform, name), platform.alert_spec()
    key = spec.keys().get(alert.view, ())
    met = evaluator.matching_rows(spec.tables, spec.source, alert, key, datetime.now(UTC))
    if met is None:
        hint = "headwater view status"
        raise UsageError(f"view {alert.view} has no published rows yet", hint=hint)
    print_rows(
        list(met.rows(met.until.keys()).values()),
        as_json=as_json,
        title="",
        empty="no row meets it",
    )


@app.command("test")
def send_test(
    name: Name,
    *,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Send a test message to each channel of an alert. Exits 3 if a channel does not accept it."""
    from projections.alerting import channels  # noqa: PLC0415
    from projections.alerting.channels import ChannelSender  # noqa: PLC0415

    platform = _platform(options, name)
    alert, spec = _alert(platform, name), platform.alert_spec()
    with closing(ChannelSender(spec.bootstrap, spec.secrets)) as sender:
        tried = channels.run(sender, spec.source, alert)
    rows = [{"channel": each.channel, "taken": each.why is None, "why": each.why} for each in tried]
    print_rows(rows, as_json=as_json, title="", empty="")
    if any(each.why is not None for each in tried):
        raise typer.Exit(EXIT_UNHEALTHY)


def _platform(options: ProjectOptions, name: str) -> Platform:
    """Opens the source of an alert's view."""
    alert = options.project().declarations.alerts.get(name)
    # one that is not declared is refused later; any source will do
    return options.platforms([alert.view] if alert else [])[0]


def _alert(platform: Platform, name: str) -> Alert:
    alerts = platform.project.declarations.alerts
    if name not in alerts:
        hint = did_you_mean(name, alerts, "headwater alert list")
        raise UsageError(f"no alert is named {name}", hint=hint)
    return alerts[name]
