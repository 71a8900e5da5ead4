"""Whether a capture can go on where it stopped, or changes in between are missing.

Debezium 3.7 resumes in silence after somebody moved its slot forward, whatever its
`offset.mismatch.strategy`, and Postgres 18 passes over a missing publication with a warning: both
lose changes. So this is looked at before a connector is started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdc.connect.connector import EPOCH_PROPERTY
from cdc.errors import CaptureSpecError
from cdc.postgres import publication, slot
from cdc.postgres.errors import PublicationDriftError, SlotError

if TYPE_CHECKING:
    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.connect.rest import ConnectRest

_REPAIR = "raise the source's epoch, then headwater up: capture starts anew with a snapshot"


def refuse_gaps(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> None:
    """Refuses to go on with a capture that has lost changes, or that would lack older rows.

    Raises:
        SlotError: The slot is gone, or ahead of what Kafka has.
        PublicationDriftError: The publication is gone, or lacks a table.
    """
    found = slot.status(connection, spec.slot)  # before the offsets, which it follows
    reached = rest.captured_through(spec.connector)
    if reached is None:
        return  # nothing captured yet: everything will come with the snapshot
    if found is None or found.confirmed_flush_lsn is None:
        raise SlotError(
            f"slot {spec.slot} is gone: changes since {reached} are missing", hint=_REPAIR
        )
    if found.confirmed_flush_lsn > reached:
        raise SlotError(
            f"somebody moved slot {spec.slot}: changes are missing",
            detail=f"captured through {reached}, slot stands at {found.confirmed_flush_lsn}",
            hint=_REPAIR,
        )
    _refuse_lack_of_tables(connection, spec)


def epoch_of(config: dict[str, str]) -> int:
    """Returns the epoch that a registered connector writes; 0 for a foreign connector."""
    return int(config.get(EPOCH_PROPERTY, "0"))


def starts_anew(spec: CaptureSpec, config: dict[str, str] | None) -> bool:
    """Tells whether the declared epoch is later than the captured one.

    Raises:
        CaptureSpecError: It is earlier: positions would go back.
    """
    if config is None or epoch_of(config) == spec.epoch:
        return False
    if epoch_of(config) > spec.epoch:
        raise CaptureSpecError(
            f"source {spec.name} is already captured in a later epoch",
            detail=f"declared {spec.epoch}, captured {epoch_of(config)}",
            hint=f"declare epoch {epoch_of(config)}",
        )
    return True


def _refuse_lack_of_tables(connection: Connection[Any], spec: CaptureSpec) -> None:
    published = publication.find(connection, spec.publication)
    if published is None:
        raise PublicationDriftError(
            f"publication {spec.publication} is gone: changes may be missing", hint=_REPAIR
        )
    if published.all_tables:
        return
    # an outbox has no older rows that could be missing
    missing = sorted(map(str, set(spec.captured) - published.tables - {spec.outbox}))
    if missing:
        raise PublicationDriftError(
            "tables were not captured from the start: their older rows would be missing",
            detail=", ".join(missing),
            hint=_REPAIR,
        )
