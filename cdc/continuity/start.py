"""Decides whether a connector may stream, in which epoch, and from which position."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog
from psycopg.errors import ReadOnlySqlTransaction

from cdc.connect import supervision
from cdc.continuity.errors import REPAIR
from cdc.continuity.evidence import epoch_of, gather, gather_at_source, judge
from cdc.postgres import captures, publication
from cdc.postgres.errors import PublicationDriftError
from cdc.snapshot import reads

if TYPE_CHECKING:
    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.connect.rest import ConnectRest
    from cdc.continuity.evidence import Evidence, Loss

_STOP_S: Final = 30.0
_log = structlog.get_logger(__name__)


def as_captured(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> CaptureSpec:
    """Returns a spec with the captured epoch if that is later than the declared one."""
    registered = epoch_of(rest.config(spec.connector) or {})
    epoch = max(spec.epoch, registered, captures.epoch_of(connection, spec.name))
    return replace(spec, epoch=epoch)


def raised_by_hand(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> bool:
    """Returns whether the declared epoch is later than the captured one."""
    registered = epoch_of(rest.config(spec.connector) or {})
    captured = max(registered, captures.epoch_of(connection, spec.name))
    return 0 < captured < spec.epoch


def find_loss(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> Loss | None:
    """Returns why a capture cannot continue; None if it can. Changes nothing.

    Raises:
        ConnectUnavailableError: Connect does not answer.
        BrokerUnreachableError: No broker answers.
    """
    return judge(gather(connection, rest, spec))


def find_loss_at_source(connection: Connection[Any], spec: CaptureSpec) -> Loss | None:
    """Returns a loss that the source alone shows; None if there is none. Changes nothing."""
    return judge(gather_at_source(connection, spec))


def refuse(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> Evidence:
    """Refuses to continue a capture that has lost changes, and records the loss.

    Returns:
        The evidence, if the capture may continue.

    Raises:
        ContinuityError: Changes are missing, or may be; the subclass names the cause.
        PublicationDriftError: The publication is gone, or has lost a table.
    """
    seen = gather(connection, rest, spec)
    loss = judge(seen)
    if loss is not None:
        mark(connection, spec, loss)
        raise loss.error()
    if seen.capture is not None:
        refuse_lack_of_tables(connection, spec)
    return seen


def refuse_lack_of_tables(connection: Connection[Any], spec: CaptureSpec) -> None:
    """Refuses a publication that omits tables which were already captured.

    Raises:
        PublicationDriftError: It is gone, or a table with a snapshot is no longer in it.
    """
    published = publication.find(connection, spec.publication)
    if published is None:
        raise PublicationDriftError(
            f"publication {spec.publication} was dropped: changes may be missing", hint=REPAIR
        )
    if published.all_tables:
        return
    # a new table gets its snapshot once it is published
    read = {read.table for read in reads.of_source(connection, spec.name, spec.epoch)}
    missing = sorted(map(str, read & set(spec.captured) - published.tables))
    if missing:
        raise PublicationDriftError(
            "tables were removed from the publication: their changes are missing",
            detail=", ".join(missing),
            hint="; ".join(f"headwater source resnapshot {table}" for table in missing)
            + " adds the table again and takes a snapshot",
        )


def admit(
    connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec, seen: Evidence
) -> None:
    """Lets a connector stream from the verified position of its slot.

    A connector may have stored an offset before its first change. That offset is the end of the log
    at that time, not the captured position, and a task that continued there would skip changes. The
    offset is therefore removed, and the task begins at the slot's position.
    """
    known = seen.capture
    if known is None or seen.slot is None or seen.slot.confirmed_flush_lsn is None:
        return
    if seen.stored and seen.reached is None:
        rest.stop(spec.connector)
        supervision.wait_stopped(rest, spec.connector, _STOP_S)
        rest.delete_offsets(spec.connector)
        rest.resume(spec.connector)
    if seen.failed_over:
        _log.warning(
            "the source failed over, and its slot with it: capture goes on",
            timeline=seen.server.timeline,
            left_at=str(seen.left_at),
            captured_through=str(seen.reached),
        )
        captures.follow_timeline(connection, known.source, seen.server.timeline)
    if known.cleared_lsn != seen.slot.confirmed_flush_lsn:
        captures.clear(connection, known.source, seen.slot.confirmed_flush_lsn)


def mark(connection: Connection[Any], spec: CaptureSpec, loss: Loss) -> None:
    """Records in the source that changes are missing; nothing streams until the repair."""
    if captures.find(connection, spec.name) is None:
        return  # another database, without a record of the capture
    seen = f"{loss.message}: {loss.detail}" if loss.detail else loss.message
    with suppress(ReadOnlySqlTransaction):  # a standby: refused without a record
        captures.mark_lost(connection, spec.name, loss.code, seen)
