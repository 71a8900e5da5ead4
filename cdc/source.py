"""A captured source: made, looked at, halted and taken away again."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.broker import offsets, topics
from cdc.broker.errors import TopicMissingError
from cdc.broker.topics import TopicSpec
from cdc.capture import HEARTBEAT_TABLE, CaptureSpec
from cdc.connect import outbox, supervision
from cdc.connect.connector import connector_config, topic_config
from cdc.connect.rest import ConnectRest
from cdc.continuity import refuse_gaps, starts_anew
from cdc.postgres import catalog, own_schema, preflight, publication, session, slot
from cdc.postgres.address import DatabaseAddress
from cdc.postgres.check import CheckState
from cdc.postgres.errors import PreflightError
from cdc.postgres.slot import SlotStatus
from cdc.snapshot import reads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection

    from cdc.postgres.check import Check

__all__ = ["CaptureSpec", "SlotStatus", "SourceStatus", "apply", "pause", "remove", "resume"]

_HOUR_MS: Final = 60 * 60 * 1000
_GONE: Final = "MISSING"


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How capture of one source stands.

    Attributes:
        connector_state: Connect's word for the connector; `MISSING` if there is none.
        task_state: The same of its task.
        failure: Why the task failed, one line; None if it did not.
        slot: The replication slot; None if there is none.
        end_offsets: Records by topic and partition; topics that do not exist are left out.
    """

    connector_state: str
    task_state: str
    failure: str | None
    slot: SlotStatus | None
    end_offsets: dict[tuple[str, int], int]

    @property
    def healthy(self) -> bool:
        """Whether changes flow: the task runs and reads from a slot that has its log."""
        running = self.connector_state == self.task_state == "RUNNING"
        return running and self.slot is not None and self.slot.wal_status != "lost"


def apply(spec: CaptureSpec) -> list[str]:
    """Makes the source be captured as declared; what is so already stays untouched.

    A raised epoch takes the old capture away and begins a new one with a snapshot; without that,
    nothing is dropped, and a capture that has lost changes is refused, not resumed.

    Returns:
        What was changed, one line each; empty if nothing was.

    Raises:
        PreflightError: The database does not allow it yet; the detail says what and the repair.
        SlotError: Changes are missing since the capture stopped.
        PublicationDriftError: The publication lost a table, or a table is new.
        CdcError: Postgres, Kafka or Connect refuses, or the connector's task does not run in time.
    """
    with session.connect(spec.dsn) as connection, closing(ConnectRest(spec.connect_url)) as rest:
        checks = preflight.checks(
            connection,
            source=spec.name,
            tables=spec.required,
            slot=spec.slot,
            publication=spec.publication,
        )
        _require(checks)
        changes = []
        if starts_anew(spec, rest.config(spec.connector)):
            changes += [f"removed {what}" for what in remove(spec)]
        refuse_gaps(connection, rest, spec)
        halted = _halt_for_outbox(rest, spec)
        changes += own_schema.ensure(connection)
        changes += publication.ensure(connection, spec.publication, spec.captured)
        changes += slot.ensure(connection, spec.slot, spec.deadline_s)
        changes += topics.ensure(spec.kafka_bootstrap, topic_specs(spec))
        changes += _register(rest, spec, _config(connection, spec))
        if halted:
            rest.resume(spec.connector)
        supervision.wait_running(rest, spec.connector, spec.deadline_s)
        # asked for last: the stream has everything that the reads do not see
        asked = reads.ask_initial(connection, spec.name, spec.epoch, spec.tables)
        changes += [f"{table} is to be read" for table in asked]
    return changes


def status(spec: CaptureSpec) -> SourceStatus:
    """Looks at connector, slot and topics; changes nothing."""
    with session.connect(spec.dsn) as connection:
        found_slot = slot.status(connection, spec.slot)
    with closing(ConnectRest(spec.connect_url, retry_s=3.0)) as rest:
        state = rest.state(spec.connector)
    task = state.tasks[0] if state and state.tasks else None
    failed = state.failed[0] if state and state.failed else None
    return SourceStatus(
        state.connector.state if state else _GONE,
        task.state if task else _GONE,
        supervision.cause(failed.trace) if failed else None,
        found_slot,
        _end_offsets(spec),
    )


def pause(spec: CaptureSpec) -> None:
    """Stops capturing; the slot keeps the source's log meanwhile."""
    with closing(ConnectRest(spec.connect_url)) as rest:
        rest.stop(spec.connector)
        supervision.wait_stopped(rest, spec.connector, spec.deadline_s)


def resume(spec: CaptureSpec) -> None:
    """Goes on where `pause` stopped; returns once the task runs.

    Raises:
        SlotError: Changes are missing since then.
        PublicationDriftError: The publication lost a table.
    """
    with session.connect(spec.dsn) as connection, closing(ConnectRest(spec.connect_url)) as rest:
        refuse_gaps(connection, rest, spec)
        rest.resume(spec.connector)
        supervision.wait_running(rest, spec.connector, spec.deadline_s)


def remove(spec: CaptureSpec, *, with_topics: bool = False) -> list[str]:
    """Takes capture away: connector, its offsets, slot and publication; returns what went.

    Args:
        spec: The source.
        with_topics: Delete its topics too.
    """
    gone = []
    with closing(ConnectRest(spec.connect_url)) as rest:
        if rest.state(spec.connector) is not None:
            rest.stop(spec.connector)
            supervision.wait_stopped(rest, spec.connector, spec.deadline_s)
            rest.delete_offsets(spec.connector)
            rest.delete(spec.connector)
            gone.append(f"connector {spec.connector}")
    with session.connect(spec.dsn) as connection:
        if slot.drop(connection, spec.slot):
            gone.append(f"slot {spec.slot}")
        if publication.drop(connection, spec.publication):
            gone.append(f"publication {spec.publication}")
        if own_schema.exists(connection):
            reads.forget(connection, spec.name)
    if with_topics:
        names = [topic.name for topic in topic_specs(spec)] + _message_topics(spec)
        gone += [f"topic {name}" for name in topics.delete(spec.kafka_bootstrap, names)]
    return gone


def _require(checks: Iterable[Check]) -> None:
    failing = [check for check in checks if check.state is CheckState.FAIL]
    if failing:
        hints = dict.fromkeys(check.hint for check in failing if check.hint)
        raise PreflightError(
            "the source cannot be captured as it is",
            detail="\n".join(f"{check.name}: {check.message}" for check in failing),
            hint="\n".join(hints) or None,
        )


def topic_specs(spec: CaptureSpec) -> list[TopicSpec]:
    """Returns every topic of a source as it should be, but for those of its outbox's messages."""
    kept = topic_config(spec)
    # Debezium's own beat every second is worth nothing an hour later.
    brief = {**kept, "retention.ms": str(min(spec.topic_retention_ms, _HOUR_MS))}
    copies = spec.replication_factor
    return [
        *(
            TopicSpec(name, 1 if table == HEARTBEAT_TABLE else spec.topic_partitions, kept, copies)
            for table, name in spec.table_topics.items()
        ),
        TopicSpec(spec.transaction_topic, 1, kept, copies),
        TopicSpec(spec.heartbeat_topic, 1, brief, copies),
    ]


def _message_topics(spec: CaptureSpec) -> list[str]:
    if spec.outbox is None:
        return []
    there = topics.names(spec.kafka_bootstrap)
    return sorted(name for name in there if name.startswith(spec.outbox_prefix))


def _config(connection: Connection[Any], spec: CaptureSpec) -> dict[str, str]:
    return connector_config(
        spec,
        DatabaseAddress.parse(spec.connector_dsn or spec.dsn),
        keys=catalog.keys_besides_primary(connection, spec.tables),
        excluded=catalog.generated_columns(connection, spec.tables),
    )


def _halt_for_outbox(rest: ConnectRest, spec: CaptureSpec) -> bool:
    """Stops a connector that would pass over the rows of an outbox that is published from now."""
    found = rest.config(spec.connector)
    if spec.outbox is None or found is None or outbox.routed(found):
        return False
    rest.stop(spec.connector)
    supervision.wait_stopped(rest, spec.connector, spec.deadline_s)
    return True


def _register(rest: ConnectRest, spec: CaptureSpec, wanted: dict[str, str]) -> list[str]:
    found = rest.config(spec.connector)
    if found is not None and {k: v for k, v in found.items() if k != "name"} == wanted:
        return []
    rest.put_config(spec.connector, wanted)
    verb = "registered" if found is None else "changed"
    return [f"{verb} connector {spec.connector}"]


def _end_offsets(spec: CaptureSpec) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for topic in (*spec.table_topics.values(), spec.transaction_topic):
        try:
            found |= offsets.end_offsets(spec.kafka_bootstrap, [topic])
        except TopicMissingError:
            continue
    return found
