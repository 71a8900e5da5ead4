"""`headwater reactor changes`: reactors of captured tables, and other consumer groups."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime  # Typer reads it
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import Commands, Json, SourceOptions, Yes
from headwater.cli.output import counted, print_rows
from headwater.errors import UnhealthyError, UsageError

if TYPE_CHECKING:
    from cdc.consumer import ParkedKey

app = Commands(
    help="Reactors of changes of captured tables: consumer groups of the source.",
    no_args_is_help=True,
)

_LISTED = 1_000

Name = Annotated[str, typer.Argument(metavar="REACTOR", help="Its name: the consumer group.")]
RecordName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECORD]", help="The record for which the key is parked: TOPIC/PARTITION@OFFSET."
    ),
]


@dataclass(frozen=True, kw_only=True)
class GroupOptions(SourceOptions):
    """Options that choose a source's consumer groups: by a project, or without one."""

    kafka: Annotated[
        str | None,
        typer.Option("--kafka", help="Kafka's address; default: that of the project."),
    ] = None

    def broker_and_source(self) -> tuple[str, str]:
        """Returns Kafka's address and the source's name; see `SourceOptions.part`."""
        if self.kafka is not None and self.source is not None:
            return self.kafka, self.source
        platform = self.platform()
        kafka = self.kafka or platform.endpoints.kafka_bootstrap
        return kafka, platform.project.source.name


@app.command("list")
def list_groups(
    *,
    options: GroupOptions,
    as_json: Json = False,
) -> None:
    """List the consumer groups of the source: running, paused or stopped, and parked keys."""
    from cdc.consumer import groups  # noqa: PLC0415  # needs the extra

    kafka, source = options.broker_and_source()
    rows = [
        {
            "group": one.group,
            "state": one.state,
            "paused_at": one.paused_at.isoformat(timespec="seconds") if one.paused_at else None,
            "members": one.members,
            "parked_keys": one.parked_keys,
        }
        for one in groups(kafka, source=source)
    ]
    print_rows(rows, as_json=as_json, title="", empty="no group has ever read this source")


@app.command("pause")
def pause(
    name: Name,
    *,
    options: GroupOptions,
) -> None:
    """Pause a reactor in all processes. Once this returns, it makes no effect until `resume`."""
    from cdc import consumer  # noqa: PLC0415  # needs the extra

    kafka, source = options.broker_and_source()
    consumer.pause(kafka, source=source, group=name)
    typer.echo(f"{name} is paused")


@app.command("resume")
def resume(
    name: Name,
    *,
    options: GroupOptions,
) -> None:
    """Resume a paused reactor at its position."""
    from cdc import consumer  # noqa: PLC0415  # needs the extra

    kafka, source = options.broker_and_source()
    consumer.resume(kafka, source=source, group=name)
    typer.echo(f"{name} is resumed")


@app.command("parked")
def list_parked(
    name: Name,
    *,
    options: GroupOptions,
    as_json: Json = False,
) -> None:
    """List the keys that are parked because an effect failed, without their values."""
    from cdc import consumer  # noqa: PLC0415  # needs the extra

    kafka, source = options.broker_and_source()
    rows = [
        {
            "record": _record_name(one),
            "error_type": one.error_type,
            "error_code": one.error_code,
            "attempts": one.attempts,
            "parked_at": one.parked_at.isoformat(timespec="seconds"),
            "waiting": one.waiting,
        }
        for one in consumer.parked(kafka, source=source, group=name)
    ]
    print_rows(rows, as_json=as_json, title="", empty="nothing is parked")


@app.command("retry")
def retry(
    name: Name,
    record: RecordName = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All parked keys.")] = False,
    options: GroupOptions,
) -> None:
    """Retry the effects of parked keys, with the same keys and in order."""
    from cdc import consumer  # noqa: PLC0415  # needs the extra

    if (record is None) != everything:
        raise UsageError("name one record, or --all")
    kafka, source = options.broker_and_source()
    parked = consumer.parked(kafka, source=source, group=name)
    chosen = parked if record is None else [_chosen(parked, name, record)]
    for one in chosen:
        consumer.retry(kafka, one, source=source, group=name)
    typer.echo(f"to be retried: {counted(len(chosen), 'key')}" if chosen else "nothing is parked")


@app.command("drop")
def drop(
    name: Name,
    record: Annotated[str, typer.Argument(metavar="RECORD", help="See retry.")],
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the later changes of the key.")
    ] = False,
    yes: Yes = False,
    options: GroupOptions,
) -> None:
    """Discard the effects of the change for which a key is parked."""
    from cdc import consumer  # noqa: PLC0415  # needs the extra

    if not yes:
        raise UsageError("its effects will never be made", hint="add --yes if you mean it")
    kafka, source = options.broker_and_source()
    one = _chosen(consumer.parked(kafka, source=source, group=name), name, record)
    consumer.drop(kafka, one, source=source, group=name, everything=everything)
    typer.echo("dropped")


@app.command("dry-run")
def show_effects(
    name: Annotated[str, typer.Argument(metavar="REACTOR", help="Its name.")],
    *,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="Only changes of this table; default: all of the source."),
    ] = None,
    archive: Annotated[
        bool, typer.Option("--archive", help="Read the archive instead of the topics.")
    ] = False,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since", formats=["%Y-%m-%d"], help="With --archive: first day of changes, UTC."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="Maximum number of effects.", min=1)
    ] = _LISTED,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """List the effects that a reactor would make of the changes there are; none is made.

    The reactor is in a module that the settings name. It need not run, and its position stays. The
    archive may have changes that Kafka no longer has.

    Example: headwater reactor changes dry-run paid --table public.orders --archive
    """
    from headwater.operations.events import reactor_in  # noqa: PLC0415  # needs the extra
    from projections.reacting.dry_run import (  # noqa: PLC0415  # as above
        dry_run_archive,
        dry_run_changes,
    )

    if since is not None and not archive:
        raise UsageError("--since chooses days of the archive", hint="add --archive")
    platform = options.platform()
    settings = platform.project.settings
    reactor = reactor_in(settings.eventstore, settings.root, name)
    capture = platform.capture_spec()
    chosen: dict[str, Any] = {"tables": table} if table else {}
    planned = (
        dry_run_archive(
            platform.views.job_spec().config.archive,
            capture,
            reactor,
            since=since.date() if since else None,
            **chosen,
        )
        if archive
        else dry_run_changes(capture, reactor, **chosen)
    )
    rows = [asdict(one) for one in islice(planned, limit)]
    print_rows(rows, as_json=as_json, title="", empty="these changes have no effects")


def _record_name(parked: ParkedKey) -> str:
    return f"{parked.topic}/{parked.partition}@{parked.offset}"


def _chosen(parked: list[ParkedKey], name: str, record: str) -> ParkedKey:
    for one in parked:
        if _record_name(one) == record:
            return one
    raise UnhealthyError(
        f"no key is parked for {record}", hint=f"headwater reactor changes parked {name}"
    )
