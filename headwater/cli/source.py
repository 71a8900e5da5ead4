"""`headwater source`: captured tables, their progress, and the log that the slot retains."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cdc import source as capture
from cdc.connect.errors import ConnectorFailedError
from cdc.postgres import session
from cdc.postgres.errors import PublicationDriftError
from cdc.postgres.provider import PROVIDERS
from cdc.snapshot.report import report as reads
from cdc.topic_names import TopicNames
from cdc.upkeep.errors import CaptureStalledError
from cdc.upkeep.hiding import columns_read
from cdc.upkeep.role import ROLE, statements
from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.changes import changes
from headwater.cli.options import Commands, Json, SourceOptions
from headwater.cli.output import escape, print_error, print_json, print_rows, stderr, stdout
from headwater.cli.plan import show
from headwater.cli.repair import repair
from headwater.cli.retention import retention
from headwater.cli.slot import slot
from headwater.cli.snapshot import documents, print_reads, resnapshot
from headwater.cli.source_remove import remove
from headwater.cli.sources import for_each
from headwater.errors import UsageError
from headwater.platform.specs import capture_spec
from headwater.runtime import Endpoints

if TYPE_CHECKING:
    from cdc.snapshot.report import ReadReport
    from headwater.platform.platform import Platform

app = Commands(help="The capture of the source.", no_args_is_help=True)
app.command("retention")(retention)
app.command("resnapshot")(resnapshot)
app.command("slot")(slot)
app.command("repair")(repair)
app.command("remove")(remove)
app.command("changes")(changes)


@app.command("list")
def list_sources(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """List the declared sources and their tables."""
    rows = [
        {
            "source": source.name,
            "table": str(table),
            "topic": TopicNames(source.name, source.escaped_topics).of(table),
        }
        for source in (part.source for part in options.parts())
        for table in source.tables
    ]
    print_rows(rows, as_json=as_json, title="", empty="no source is declared")


@app.command("status")
def status(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Show the state of each capture: flow of changes, connector, slot, topics, drift.

    STALLED means that the connector reports that it runs, but heartbeats do not arrive in their
    topic. Exits 3 if the capture has stopped, or differs from its applied state.
    """
    done = for_each(options.platforms(), _looked)
    if as_json:
        statuses = [
            {**done.named(source), **_document(*seen)} for source, seen in done.results.items()
        ]
        print_json(statuses if done.several else statuses[0])
    else:
        for source, seen in done.results.items():
            done.heading(source)
            _print_status(*seen)
    healthy = all(each.healthy for each, _ in done.results.values())
    done.end(0 if healthy else EXIT_UNHEALTHY)


def _looked(platform: Platform) -> tuple[capture.SourceStatus, list[ReadReport]]:
    spec = platform.capture_spec()
    return capture.status(spec), reads(spec)


def _document(source_status: capture.SourceStatus, tables: list[ReadReport]) -> dict[str, object]:
    topics = [_topic_row(*place, end) for place, end in sorted(source_status.end_offsets.items())]
    lost = None if source_status.loss is None else source_status.loss.document()
    return {
        **asdict(source_status),
        "end_offsets": topics,
        "tables": documents(tables),
        "loss": lost,
    }


def _print_status(source_status: capture.SourceStatus, tables: list[ReadReport]) -> None:
    out = stdout()
    if source_status.loss is not None:
        loss = source_status.loss
        stderr.print(f"[bold red]lost[/] [dim]{loss.code}[/] {escape(loss.message)}")
        stderr.print("  [dim]repair[/] headwater source repair --yes")
    _print_flow(source_status.flow)
    out.print(f"connector  {source_status.connector_state}, task {source_status.task_state}")
    if source_status.failure:
        out.print(f"failure    {escape(source_status.failure)}", soft_wrap=True)
    if source_status.slot is not None:
        out.print(f"slot       {_slot_line(source_status.slot)}")
    rows = [_topic_row(*place, end) for place, end in sorted(source_status.end_offsets.items())]
    print_rows(rows, as_json=False, title="", empty="no topic yet")
    print_reads(tables)
    if source_status.drift:
        stderr.print("not as it was applied; headwater apply makes it so again:")
        show(source_status.drift)


@app.command("pause")
def pause(options: SourceOptions) -> None:
    """Pause the capture. Until `source resume` the slot retains the log, which takes disk space."""
    capture.pause(_spec(options))
    stderr.print("paused; the source keeps its log until headwater source resume")


@app.command("resume")
def resume(options: SourceOptions) -> None:
    """Resume a capture that `source pause` stopped."""
    capture.resume(_spec(options))
    stderr.print("capturing")


@app.command("role")
def role(
    *,
    name: Annotated[str, typer.Option("--name", help="Name of the role.")] = ROLE,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone",
            help="The role also stores the state of the capture, so it can be used in `dsn`.",
        ),
    ] = False,
    managed: Annotated[
        str | None,
        typer.Option(
            "--managed",
            metavar="PROVIDER",
            help="The server's provider: rds, cloudsql, azure or supabase. Prints nothing that only"
            " a superuser may run.",
        ),
    ] = None,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    r"""Print SQL for a role that can capture the source and nothing else. Changes nothing.

    An administrator runs the SQL once. The role is not a superuser and owns nothing; use it in
    `capture_dsn`. The SQL sets no password: use psql's `\password` to set it without showing it.
    """
    if managed not in {None, *PROVIDERS}:
        raise UsageError(f"no provider {managed}", hint=f"one of {', '.join(PROVIDERS)}")
    platform = options.platform()
    spec = capture_spec(platform.project, platform.source_dsn, Endpoints())
    database, columns = session.database_of(spec.dsn), {}
    if spec.columns:
        with session.connect(spec.dsn) as connection:
            columns = columns_read(connection, spec)
    sql = statements(
        spec,
        database,
        name,
        alone=alone,
        columns=columns,
        managed=PROVIDERS[managed] if managed else None,
    )
    if as_json:
        print_json([asdict(statement) for statement in sql])
        return
    for statement in sql:
        typer.echo(f"-- {statement.why}\n{statement.sql}\n")


@app.command("watch", hidden=True)
def watch(options: SourceOptions) -> None:
    """Watch the connector: restart it after a failure or stall, and log drift; `up` runs this."""
    try:
        options.platform().watch()
    except (ConnectorFailedError, CaptureStalledError, PublicationDriftError) as error:
        print_error(error, as_json=False)
        raise typer.Exit(EXIT_UNHEALTHY) from None


def _spec(options: SourceOptions) -> capture.CaptureSpec:
    return options.platform().capture_spec()


def _print_flow(flow: capture.Flow) -> None:
    since = f" since {flow.since:%Y-%m-%d %H:%M:%S} UTC" if flow.since else ""
    # a stall begins after the newest heartbeat that was received
    stands = since if flow.state is capture.FlowState.STALLED else ""
    stdout().print(f"flow       {flow.state}{stands}")
    stdout().print(f"seen       {escape(flow.seen)}", soft_wrap=True)


def _topic_row(topic: str, partition: int, end: int) -> dict[str, object]:
    return {"topic": topic, "partition": partition, "records": end}


def _slot_line(slot_status: capture.SlotStatus) -> str:
    return (
        f"{slot_status.name}: {'active' if slot_status.active else 'inactive'}, "
        f"confirmed through {slot_status.confirmed_flush_lsn}, "
        f"holds {slot_status.retained_bytes / 1024 / 1024:.1f} MiB of log "
        f"({slot_status.wal_status})"
    )
