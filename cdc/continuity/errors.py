"""Errors of a capture that cannot go on: changes are missing, or nobody can tell.

ContinuityError
├── SlotDroppedError          HW-C070  the slot is gone
├── SlotInvalidatedError      HW-C071  the server gave up the log that the slot should have kept
├── SlotRecreatedError        HW-C072  the slot was dropped and made anew by somebody else
├── SlotMovedError            HW-C073  the slot was moved past changes that nobody has
├── OffsetsGoneError          HW-C074  the connector forgot how far it came
├── TopicsRecreatedError      HW-C075  topics are gone, made anew, or shorter than they were
├── SourceRestoredError       HW-C076  the source is at an earlier time, or on another history
├── OtherServerError          HW-C077  this is another database, or it does not know of its capture
├── FailoverWithoutSlotError  HW-C078  the source failed over to a standby that had no slot
├── BeatMissingError          HW-C079  changes went missing while the connector ran
└── RepairUnfinishedError     HW-C018  a repair was begun and not ended
"""

from __future__ import annotations

from typing import Final

from cdc.postgres.errors import PostgresError
from foundation.errors import EXIT_UNHEALTHY

REPAIR: Final = "headwater source repair --yes"
"""What repairs each of them: a new slot, and every table read anew."""


class ContinuityError(PostgresError):
    """Root of what stops a capture for good: it goes on after a repair only."""

    code = "HW-C07X"
    exit_code = EXIT_UNHEALTHY


class SlotDroppedError(ContinuityError):
    """The slot is gone, and with it the log since the last change that Kafka has."""

    code = "HW-C070"


class SlotInvalidatedError(ContinuityError):
    """The server gave up the log that the slot should have kept: it grew beyond a limit, or age."""

    code = "HW-C071"


class SlotRecreatedError(ContinuityError):
    """A slot of this name is there, and it is not the one that was read from."""

    code = "HW-C072"


class SlotMovedError(ContinuityError):
    """The slot stands beyond the last change that Kafka has."""

    code = "HW-C073"


class OffsetsGoneError(ContinuityError):
    """The connector has forgotten how far it came, so nothing vouches for the slot."""

    code = "HW-C074"


class TopicsRecreatedError(ContinuityError):
    """Topics are gone, made anew, or shorter than they were: Kafka lost what it had."""

    code = "HW-C075"


class SourceRestoredError(ContinuityError):
    """The source is at an earlier time: Kafka has changes that it never made on this history."""

    code = "HW-C076"


class OtherServerError(ContinuityError):
    """The database is another one than was captured, or does not know that it was."""

    code = "HW-C077"


class FailoverWithoutSlotError(ContinuityError):
    """The source failed over to a standby that did not have the slot."""

    code = "HW-C078"


class BeatMissingError(ContinuityError):
    """Heartbeats are missing in their topic, and with them the changes around them."""

    code = "HW-C079"


class RepairUnfinishedError(ContinuityError):
    """A repair was begun and not ended; the same command goes on with it."""

    code = "HW-C018"
