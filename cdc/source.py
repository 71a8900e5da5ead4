"""Creates, inspects, pauses, repairs and removes the capture of a source."""

from __future__ import annotations

import contextlib
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc import continuity
from cdc.broker.errors import BrokerUnreachableError
from cdc.broker.topics import extent, topics
from cdc.capture import CaptureSpec
from cdc.connect import outbox, secrets, supervision
from cdc.connect.connector import table_pattern
from cdc.connect.errors import ConnectorRefusedError, ConnectUnavailableError
from cdc.connect.rest import ConnectRest
from cdc.continuity import Loss, RepairPlan
from cdc.postgres import (
    captures,
    escaped_topics,
    own_schema,
    session,
    slot,
)
from cdc.postgres.check import CheckState
from cdc.postgres.errors import PreflightError
from cdc.postgres.slot import SlotStatus
from cdc.schema_change import trigger
from cdc.snapshot import reads
from cdc.upkeep import capture_sample, reconcile, remnants
from cdc.upkeep.difference import Difference
from cdc.upkeep.flow import Flow, FlowState
from cdc.upkeep.plan import checks, plan, plan_at_source, plan_first
from cdc.upkeep.reconcile import topic_specs
from cdc.upkeep.remnants import RemnantKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from psycopg import Connection

    from cdc.postgres.check import Check

__all__ = [
    "CaptureSpec",
    "Difference",
    "Flow",
    "FlowState",
    "Loss",
    "RepairPlan",
    "SlotStatus",
    "SourceStatus",
    "apply",
    "checks",
    "loss",
    "pause",
    "plan",
    "plan_at_source",
    "plan_first",
    "plan_repair",
    "reads_slot",
    "remove",
    "remove_connector",
    "repair",
    "resume",
    "status",
    "topic_specs",
]

_GONE: Final = "MISSING"
_SLOT_CHECKS: Final = frozenset({"slot", "slots"})
_OF_STREAM: Final = (RemnantKind.SLOT, RemnantKind.PUBLICATION)
_SILENT: Final = "UNREACHABLE"
_WORKER_S: Final = 4.0
"""A worker that does not answer within this time counts as unavailable."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The state of capture of one source.

    Attributes:
        connector_state: Connect's state of the connector; `MISSING` if there is none.
        task_state: Connect's state of its task.
        failure: Why the task failed, one line; None if it did not.
        slot: The replication slot; None if there is none.
        end_offsets: End offsets by topic and partition; missing topics are omitted.
        flow: Whether changes flow, as measured.
        drift: Differences from the declaration; `plan` shows the same.
        loss: Why changes are missing, as far as known; None if none are.
    """

    connector_state: str
    task_state: str
    failure: str | None
    slot: SlotStatus | None
    end_offsets: dict[tuple[str, int], int]
    flow: Flow
    drift: tuple[Difference, ...] = ()
    loss: Loss | None = None

    @property
    def healthy(self) -> bool:
        """Returns whether changes flow, from an intact slot, as declared."""
        kept = self.slot is not None and self.slot.wal_status != "lost"
        return self.flow.healthy and kept and not self.drift and self.loss is None


def apply(spec: CaptureSpec) -> list[str]:
    """Captures the source as declared; changes only what differs.

    A declared epoch later than the captured one triggers a repair, as by `repair`. Otherwise
    nothing is dropped, and a capture that has lost changes is refused, not resumed.

    Returns:
        What was changed, one line each; empty if nothing was.

    Raises:
        PreflightError: The database does not allow it yet; the detail has causes and repairs.
        ContinuityError: Changes are missing; the class names the cause.
        PublicationDriftError: The publication is gone, or lost a table.
        CdcError: Postgres, Kafka or Connect refuses, or the connector's task does not run in time.
    """
    with session.connect(spec.dsn) as connection, closing(ConnectRest(spec.connect_url)) as rest:
        found = checks(connection, spec)
        _require(check for check in found if check.name not in _SLOT_CHECKS)
        changes = []
        if continuity.raised_by_hand(connection, rest, spec):
            changes += _repair(connection, rest, spec)
        spec = continuity.as_captured(connection, rest, spec)
        seen = continuity.refuse(connection, rest, spec)
        if seen.capture is None:
            _require(found)
        halted = _halt_for_more(rest, spec)
        changes += reconcile.applied(reconcile.steps(connection, rest, spec))
        if halted:
            rest.resume(spec.connector)
        supervision.wait_running(rest, spec.connector, spec.deadline_s)
        continuity.await_streaming(connection, rest, spec, spec.deadline_s)
        # requested last: the stream has every change that the snapshots do not see
        asked = reads.ask_initial(connection, spec.name, spec.epoch, spec.tables)
        changes += [f"{table} is to be read" for table in asked]
    return changes


def status(spec: CaptureSpec) -> SourceStatus:
    """Reads the state of connector, slot and topics; changes nothing."""
    with (
        session.connect(spec.dsn) as connection,
        closing(ConnectRest(spec.connect_url, retry_s=0.0, timeout_s=_WORKER_S)) as rest,
    ):
        found_slot = slot.status(connection, spec.slot)
        flow, seen = capture_sample.observe(connection, rest, spec)
        state = seen.worker
        drift = []
        lost = _loss(connection, rest, spec)
        if state is not None:
            with contextlib.suppress(ConnectUnavailableError, BrokerUnreachableError):
                drift = reconcile.drift(connection, rest, spec)
    task = state.tasks[0] if state and state.tasks else None
    failed = state.failed[0] if state and state.failed else None
    none = _GONE if seen.answers else _SILENT
    return SourceStatus(
        state.connector.state if state else none,
        task.state if task else none,
        supervision.cause(failed.trace) if failed else None,
        found_slot,
        _end_offsets(spec),
        flow,
        tuple(drift),
        lost,
    )


def pause(spec: CaptureSpec) -> None:
    """Pauses the capture; the slot retains the source's log meanwhile.

    Raises:
        ConnectorRefusedError: The source is not captured.
    """
    with closing(ConnectRest(spec.connect_url)) as rest:
        if not rest.stop(spec.connector):
            raise ConnectorRefusedError(
                f"connector {spec.connector} does not exist", hint="headwater up creates it"
            )
        supervision.wait_stopped(rest, spec.connector, spec.deadline_s)


def resume(spec: CaptureSpec) -> None:
    """Resumes a paused capture; returns once the task runs.

    Raises:
        ContinuityError: Changes are missing since then; the class names the cause.
        PublicationDriftError: The publication is gone, or lost a table.
    """
    with session.connect(spec.dsn) as connection, closing(ConnectRest(spec.connect_url)) as rest:
        spec = continuity.as_captured(connection, rest, spec)
        seen = continuity.refuse(connection, rest, spec)
        if seen.slot is not None and not seen.slot.active:
            continuity.admit(connection, rest, spec, seen)
        rest.resume(spec.connector)
        continuity.await_streaming(connection, rest, spec, spec.deadline_s)


def repair(spec: CaptureSpec, say: Callable[[str], None] = lambda _: None) -> list[str]:
    """Recreates a capture: a slot, an epoch, and a snapshot of every table.

    After a kill, call it again; until it has ended, `apply` and `resume` refuse.

    Args:
        spec: The source.
        say: Receives each step once it is done.

    Returns:
        The steps, one line each.

    Raises:
        CaptureSpecError: The source was never captured, or has no epoch left.
        PreflightError: The database does not allow it yet.
        CdcError: Postgres, Kafka or Connect refuses.
    """
    with session.connect(spec.dsn) as connection, closing(ConnectRest(spec.connect_url)) as rest:
        return _repair(connection, rest, spec, say)


def loss(spec: CaptureSpec) -> Loss | None:
    """Returns why changes are missing, as far as that can be seen; None if none are."""
    with (
        session.connect(spec.dsn) as connection,
        closing(ConnectRest(spec.connect_url, retry_s=0.0, timeout_s=_WORKER_S)) as rest,
    ):
        return _loss(connection, rest, spec)


def plan_repair(spec: CaptureSpec) -> RepairPlan:
    """Returns what `repair` would do; changes nothing.

    Raises:
        CaptureSpecError: The source was never captured, or has no epoch left.
    """
    with session.connect(spec.dsn) as connection, closing(ConnectRest(spec.connect_url)) as rest:
        return continuity.plan_repair(connection, rest, spec)


def remove(spec: CaptureSpec, *, with_topics: bool = False) -> list[str]:
    """Removes a capture: connector, offsets, slot and publication; returns what was removed.

    Foreign objects with these names remain.

    Args:
        spec: The source.
        with_topics: Whether to delete its topics, too.
    """
    gone = []
    with session.connect(spec.dsn) as connection, closing(ConnectRest(spec.connect_url)) as rest:
        if remove_connector(connection, rest, spec):
            gone.append(f"connector {spec.connector}")
        for remnant in remnants.find(connection, spec.name):
            if remnant.removable and remnant.part in _OF_STREAM:
                remnants.drop(connection, spec.name, remnant)
                gone.append(f"{remnant.part} {remnant.name}")
        if own_schema.exists(connection):
            reads.forget(connection, spec.name)
            captures.forget(connection, spec.name)
            escaped_topics.forget(connection, spec.name)
            gone += ["event triggers"] if trigger.drop(connection) else []
    secrets.remove(spec)
    if with_topics:
        names = [topic.name for topic in topic_specs(spec)] + _message_topics(spec)
        gone += [f"topic {name}" for name in topics.delete(spec.kafka_bootstrap, names)]
    return gone


def remove_connector(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> bool:
    """Removes the connector that reads a source's slot, with its offsets.

    Returns:
        Whether it existed; a foreign connector with its name remains.
    """
    config = rest.config(spec.connector)
    if config is None or not reads_slot(connection, config, spec):
        return False
    if not rest.stop(spec.connector):
        return False  # Connect reports a removed connector for a moment longer
    supervision.wait_stopped(rest, spec.connector, spec.deadline_s)
    rest.delete_offsets(spec.connector)
    rest.delete(spec.connector)
    return True


def reads_slot(connection: Connection[Any], config: Mapping[str, str], spec: CaptureSpec) -> bool:
    """Returns whether a connector's configuration names the source's slot in this database."""
    read = (config.get("slot.name"), config.get("database.dbname"))
    return read == (spec.slot, connection.info.dbname)


def _loss(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> Loss | None:
    try:
        spec = continuity.as_captured(connection, rest, spec)
        return continuity.find_loss(connection, rest, spec)
    except (ConnectUnavailableError, BrokerUnreachableError):
        return continuity.find_loss_at_source(connection, spec)


def _repair(
    connection: Connection[Any],
    rest: ConnectRest,
    spec: CaptureSpec,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    # the slot is recreated, regardless of its present state
    _require(check for check in checks(connection, spec) if check.name not in _SLOT_CHECKS)

    def reconciled(repaired: CaptureSpec) -> list[str]:
        return reconcile.applied(reconcile.steps(connection, rest, repaired))

    done = []
    for step in continuity.repair(connection, rest, spec, reconcile=reconciled):
        say(step)
        done.append(step)
    return done


def _require(checks: Iterable[Check]) -> None:
    failing = [check for check in checks if check.state is CheckState.FAIL]
    if failing:
        hints = dict.fromkeys(check.hint for check in failing if check.hint)
        raise PreflightError(
            "the source cannot be captured",
            detail="\n".join(f"{check.name}: {check.message}" for check in failing),
            hint="\n".join(hints) or None,
        )


def _message_topics(spec: CaptureSpec) -> list[str]:
    if spec.outbox is None:
        return []
    there = topics.names(spec.kafka_bootstrap)
    return sorted(name for name in there if name.startswith(spec.outbox_prefix))


def _halt_for_more(rest: ConnectRest, spec: CaptureSpec) -> bool:
    """Stops a connector that would skip rows of newly published tables.

    Connect reports the old task as running until the task with the new configuration begins.
    """
    found = rest.config(spec.connector)
    if found is None:
        return False
    known = found.get("table.include.list", "")
    if all(table_pattern(table) in known for table in spec.captured) and (
        spec.outbox is None or outbox.routed(found)
    ):
        return False
    if not rest.stop(spec.connector):
        return False  # Connect reports a removed connector for a moment longer
    supervision.wait_stopped(rest, spec.connector, spec.deadline_s)
    return True


def _end_offsets(spec: CaptureSpec) -> dict[tuple[str, int], int]:
    topics = (*spec.table_topics.values(), spec.transaction_topic)
    found = extent.bounds(spec.kafka_bootstrap, topics)
    return {partition: end for partition, (_, end) in found.items()}
