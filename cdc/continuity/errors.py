"""Errors of a capture that cannot continue: changes are missing, or that cannot be determined.

ContinuityError
├── SlotDroppedError          HW-C070  the slot is gone
├── SlotInvalidatedError      HW-C071  the server removed log that the slot should have retained
├── SlotRecreatedError        HW-C072  the slot was dropped and recreated by another program
├── SlotMovedError            HW-C073  the slot was moved past changes that were not captured
├── OffsetsGoneError          HW-C074  the connector's offsets are lost
├── TopicsRecreatedError      HW-C075  topics are gone, recreated, or shorter than before
├── SourceRestoredError       HW-C076  the source is at an earlier time, or on another timeline
├── OtherServerError          HW-C077  this is another database, or has no record of its capture
├── FailoverWithoutSlotError  HW-C078  the source failed over to a standby that had no slot
├── BeatMissingError          HW-C079  changes went missing while the connector ran
└── RepairUnfinishedError     HW-C018  a repair has begun and not ended
"""

from __future__ import annotations

from typing import Final

from cdc.postgres.errors import PostgresError
from foundation.errors import EXIT_UNHEALTHY

REPAIR: Final = "headwater source repair --yes"
"""The repair of each: a new slot, and a snapshot of every table."""


class ContinuityError(PostgresError):
    """Root of the errors after which a capture needs a repair."""

    code = "HW-C07X"
    exit_code = EXIT_UNHEALTHY


class SlotDroppedError(ContinuityError):
    """The slot was dropped, and the log after the last change in Kafka is lost."""

    code = "HW-C070"


class SlotInvalidatedError(ContinuityError):
    """The server invalidated the slot: its log exceeded a limit of size or age."""

    code = "HW-C071"


class SlotRecreatedError(ContinuityError):
    """The slot was recreated: it is not the one from which the connector read."""

    code = "HW-C072"


class SlotMovedError(ContinuityError):
    """The slot is ahead of the last change in Kafka."""

    code = "HW-C073"


class OffsetsGoneError(ContinuityError):
    """The connector's offsets are lost, so the slot's position cannot be verified."""

    code = "HW-C074"


class TopicsRecreatedError(ContinuityError):
    """Topics were deleted, recreated or truncated: Kafka has lost records."""

    code = "HW-C075"


class SourceRestoredError(ContinuityError):
    """The source was restored to an earlier time: Kafka has changes that it does not have."""

    code = "HW-C076"


class OtherServerError(ContinuityError):
    """The database is not the one that was captured, or has lost the record of its capture."""

    code = "HW-C077"


class FailoverWithoutSlotError(ContinuityError):
    """The source failed over to a standby that did not have the slot."""

    code = "HW-C078"


class BeatMissingError(ContinuityError):
    """Heartbeats are missing in their topic, so changes may be missing as well."""

    code = "HW-C079"


class RepairUnfinishedError(ContinuityError):
    """A repair is unfinished; the same command continues it."""

    code = "HW-C018"
