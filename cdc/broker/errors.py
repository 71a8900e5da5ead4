"""Errors of Kafka.

BrokerError (CdcError)
├── BrokerUnreachableError  HW-C030  no broker answers
├── TopicRefusedError       HW-C031  a topic cannot be created or changed as required
├── TopicMissingError       HW-C032  a required topic does not exist
├── RecordRefusedError      HW-C033  brokers did not accept a record
├── GroupRefusedError       HW-C034  the brokers do not let a group read
└── RecordTooLargeError     HW-C035  a record exceeds the maximum size
"""

from __future__ import annotations

from cdc.errors import CdcError


class BrokerError(CdcError):
    """Root of the errors of Kafka."""

    code = "HW-C03X"


class BrokerUnreachableError(BrokerError):
    """No broker answers at the address."""

    code = "HW-C030"
    retriable = True


class TopicRefusedError(BrokerError):
    """A topic cannot be created with the required properties."""

    code = "HW-C031"


class TopicMissingError(BrokerError):
    """A required topic does not exist."""

    code = "HW-C032"


class RecordRefusedError(BrokerError):
    """Brokers did not acknowledge a record; it is sent again."""

    code = "HW-C033"
    retriable = True


class GroupRefusedError(BrokerError):
    """The brokers refuse reads by this consumer group or member."""

    code = "HW-C034"


class RecordTooLargeError(BrokerError):
    """A record is larger than the maximum record size."""

    code = "HW-C035"
