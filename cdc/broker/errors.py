"""Errors of Kafka.

BrokerError (CdcError)
├── BrokerUnreachableError  HW-C030  no broker answers
├── TopicRefusedError       HW-C031  a topic cannot be made as it must be
├── TopicMissingError       HW-C032  a topic that should be there is not
├── RecordRefusedError      HW-C033  brokers did not take a record
├── GroupRefusedError       HW-C034  the brokers do not let a group read
└── RecordTooLargeError     HW-C035  a record is larger than any that is sent
"""

from __future__ import annotations

from cdc.errors import CdcError


class BrokerError(CdcError):
    """Root of what can be wrong with Kafka."""

    code = "HW-C03X"


class BrokerUnreachableError(BrokerError):
    """No broker answers at the address."""

    code = "HW-C030"
    retriable = True


class TopicRefusedError(BrokerError):
    """A topic cannot be made as it must be."""

    code = "HW-C031"


class TopicMissingError(BrokerError):
    """A topic that should be there is not."""

    code = "HW-C032"


class RecordRefusedError(BrokerError):
    """Brokers did not acknowledge what was sent; it is sent again."""

    code = "HW-C033"
    retriable = True


class GroupRefusedError(BrokerError):
    """The brokers do not let this group, or this member of it, read."""

    code = "HW-C034"


class RecordTooLargeError(BrokerError):
    """A record is larger than any that is sent."""

    code = "HW-C035"
