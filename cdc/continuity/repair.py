"""The repair of a capture that has lost changes: a new slot, a new epoch, and new snapshots.

Earlier captured data remains: the snapshots overwrite existing rows, and rows that were deleted
meanwhile are removed from the views once the snapshot of their table is complete.
Each step can be repeated, so a killed repair can be started again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.topics import incarnation
from cdc.capture import HEARTBEAT_TABLE
from cdc.connect import supervision
from cdc.continuity.evidence import epoch_of, gather, judge
from cdc.errors import CaptureSpecError
from cdc.postgres import captures, own_schema, publication, server, slot
from cdc.postgres.captures import Capture
from cdc.postgres.errors import SlotError, SlotExistsError
from cdc.snapshot import reads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.connect.rest import ConnectRest
    from cdc.continuity.evidence import Loss

_EPOCH_MAX: Final = 127


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair will do.

    Attributes:
        loss: The loss; None if there is none.
        epoch: Captured incarnation of the source; 0 if there is none.
        becomes: Incarnation after the repair.
        steps: The steps, one line each.
    """

    loss: Loss | None
    epoch: int
    becomes: int
    steps: tuple[str, ...]


def plan(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> RepairPlan:
    """Returns what a repair would do; changes nothing.

    Raises:
        CaptureSpecError: The source was never captured, or has no epoch left.
    """
    seen = gather(connection, rest, spec)
    known = seen.capture
    if known is None and not seen.registered_epoch:
        raise CaptureSpecError(
            f"source {spec.name} is not captured yet", hint="headwater up captures it"
        )
    epoch, becomes = next_epoch(known, seen.registered_epoch, spec)
    steps = [
        f"stop connector {spec.connector} and make it forget how far it came",
        f"recreate slot {spec.slot}",
        f"raise the epoch from {epoch} to {becomes}",
        "forget how far the views have come",
        *(f"read {table} as a whole" for table in spec.tables),
        f"resume connector {spec.connector}",
    ]
    return RepairPlan(judge(seen), epoch, becomes, tuple(steps))


def next_epoch(known: Capture | None, registered: int, spec: CaptureSpec) -> tuple[int, int]:
    """Returns the captured epoch and the one after a repair.

    Args:
        known: The recorded capture.
        registered: Epoch of the registered connector.
        spec: The declaration; its epoch is the minimum.

    Raises:
        CaptureSpecError: No epoch is left.
    """
    epoch = max(registered, known.epoch if known else 0)
    begun = known.repairing if known else None
    becomes = max(spec.epoch, begun if begun is not None else epoch + 1)
    if becomes > _EPOCH_MAX:
        raise CaptureSpecError(
            f"source {spec.name} has used all {epoch} epochs",
            hint="capture it under another name",
        )
    return epoch, becomes


def begin(connection: Connection[Any], spec: CaptureSpec) -> list[str]:
    """Creates and records the slot; recreates a slot that was created but not recorded.

    A slot cannot be created in the transaction that records it. The intention is therefore recorded
    first, while no slot exists. An existing slot without such a record is foreign.

    Raises:
        SlotError: It cannot be created, a foreign slot has its name, or it is being read.
    """
    if captures.find(connection, spec.name) is not None:
        return []
    if captures.intended(connection, spec.name, spec.slot):
        slot.drop(connection, spec.slot)
    elif slot.status(connection, spec.slot) is not None:
        raise _foreign_slot_error(spec)
    captures.intend(connection, spec.name, spec.slot)
    try:
        record_new_slot(connection, spec, admit=True)
    except SlotExistsError:
        captures.withdraw(connection, spec.name)
        raise _foreign_slot_error(spec) from None
    except SlotError:
        if slot.status(connection, spec.slot) is None:
            captures.withdraw(connection, spec.name)
        raise
    return [f"made slot {spec.slot}"]


def _foreign_slot_error(spec: CaptureSpec) -> SlotError:
    return SlotError(
        f"slot {spec.slot} was not created by Headwater",
        detail="no recorded capture of this database uses it",
        hint=f"give this source another name, or drop the slot: {slot.dropping(spec.slot)}",
    )


def record_new_slot(connection: Connection[Any], spec: CaptureSpec, *, admit: bool) -> None:
    """Creates and records a new slot, with the present state of the topics."""
    here = server.identify(connection)
    made_at = slot.make(connection, spec.slot, spec.deadline_s)
    names = {*spec.table_topics.values(), spec.transaction_topic}
    topics = incarnation.look(spec.kafka_bootstrap, names)
    beating = topics.get(spec.table_topics[HEARTBEAT_TABLE])
    with connection.transaction():
        captures.record(
            connection,
            Capture(spec.name, spec.epoch, spec.slot, made_at, here.system_id, here.timeline),
        )
        captures.note_topics(connection, spec.name, topics)
        if beating is not None:
            captures.note_beat_offset(connection, spec.name, beating.ends[0])
        captures.forget_positions(connection, spec.name)
        if admit:
            captures.clear(connection, spec.name, made_at)


def repair(
    connection: Connection[Any],
    rest: ConnectRest,
    spec: CaptureSpec,
    *,
    reconcile: Callable[[CaptureSpec], list[str]],
) -> Iterator[str]:
    """Recreates a capture; yields each step, one line each, once it is done.

    Args:
        connection: To the source, as the role that sets up, in autocommit.
        rest: The worker.
        spec: What is captured.
        reconcile: Creates publication, topics and the connector's configuration by a spec.

    Raises:
        CaptureSpecError: The source was never captured, or has no epoch left.
        CdcError: Postgres, Kafka or Connect refuses; repeating the call continues.
    """
    yield from own_schema.ensure(connection)
    spec = _begun(connection, rest, spec)
    if rest.stop(spec.connector):
        supervision.wait_stopped(rest, spec.connector, spec.deadline_s)
        rest.delete_offsets(spec.connector)
        yield f"stopped connector {spec.connector}; it has forgotten how far it came"
    publication.ensure(connection, spec.publication, spec.captured)
    if slot.drop(connection, spec.slot):
        yield f"dropped slot {spec.slot}"
    record_new_slot(connection, spec, admit=False)
    yield f"made slot {spec.slot}; epoch is {spec.epoch}"
    # the slot has every change from now on, and snapshots begin later
    for table in reads.ask_initial(connection, spec.name, spec.epoch, spec.tables):
        yield f"{table} is to be read"
    yield from reconcile(spec)
    _stream(connection, rest, spec)
    captures.end_repair(connection, spec.name)
    yield f"resumed connector {spec.connector}"


def _begun(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> CaptureSpec:
    known = captures.find(connection, spec.name)
    registered = epoch_of(rest.config(spec.connector) or {})
    if known is None and not registered:
        raise CaptureSpecError(
            f"source {spec.name} is not captured yet", hint="headwater up captures it"
        )
    epoch, becomes = next_epoch(known, registered, spec)
    here = server.identify(connection)
    before = known or Capture(
        spec.name, epoch, spec.slot, here.end_lsn, here.system_id, here.timeline
    )
    captures.begin_repair(connection, replace(before, repairing=becomes))
    return replace(spec, epoch=becomes)


def _stream(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> None:
    found = slot.status(connection, spec.slot)
    captures.clear(connection, spec.name, found.confirmed_flush_lsn if found else None)
    rest.resume(spec.connector)
    supervision.wait_running(rest, spec.connector, spec.deadline_s)
