"""Errors of consumers.

ConsumerError (CdcError)
├── ConsumerSpecError    HW-C040  the declaration of a consumer is invalid
├── RecordsGoneError     HW-C041  records that the group has not read were deleted
├── TopicRecreatedError  HW-C042  a topic was recreated since the group read it
├── TooManyParkedError   HW-C043  more keys would be parked than allowed
├── GroupActiveError     HW-C044  a group has members that would overwrite the offsets
├── TableUndescribedError HW-C045 the source cannot describe a table now
├── GroupUnknownError    HW-C046  the group does not exist
└── PauseTimeoutError    HW-C047  members have not confirmed a pause in time
"""

from __future__ import annotations

from cdc.errors import CdcError


class ConsumerError(CdcError):
    """Root of the errors of consumers."""

    code = "HW-C04X"


class ConsumerSpecError(ConsumerError):
    """The declaration of a consumer is invalid."""

    code = "HW-C040"


class RecordsGoneError(ConsumerError):
    """Records that the group has not read are no longer in the topic: they are lost to it."""

    code = "HW-C041"


class TopicRecreatedError(ConsumerError):
    """A topic was deleted and recreated; the group's offsets belong to the old topic."""

    code = "HW-C042"


class TooManyParkedError(ConsumerError):
    """More keys would be parked than allowed, which indicates a broken handler."""

    code = "HW-C043"


class GroupActiveError(ConsumerError):
    """The group has members, whose commits would overwrite the requested offsets."""

    code = "HW-C044"
    retriable = True


class TableUndescribedError(ConsumerError):
    """A record does not fit what is known of its table, and the source cannot be asked now."""

    code = "HW-C045"
    retriable = True


class GroupUnknownError(ConsumerError):
    """The group has never read the source."""

    code = "HW-C046"


class PauseTimeoutError(ConsumerError):
    """The group is paused, but a member has not confirmed in time that nothing is in hand."""

    code = "HW-C047"
    retriable = True
