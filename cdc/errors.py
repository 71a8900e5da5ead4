"""Errors of change data capture.

CdcError
├── EnvelopeError        HW-C001  a record is not a Debezium change
├── ValueDecodeError     HW-C002  a value does not fit its column's type
├── SchemaMismatchError  HW-C003  a record has other columns than the table had
├── CaptureSpecError     HW-C004  a source cannot be captured as it is declared
├── ColumnRuleError      HW-C053  a rule for columns cannot be kept
├── PostgresError        HW-C01x  the source database
├── ConnectError         HW-C02x  Kafka Connect and the connector
└── BrokerError          HW-C03x  Kafka
"""

from __future__ import annotations

from typing import ClassVar


class CdcError(Exception):
    """Root of this package's errors.

    Args:
        message: Lowercase fact without a full stop.
        detail: What was seen; never a secret or a row's value.
        hint: What repairs it.
    """

    code: ClassVar[str] = "HW-C000"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint


class EnvelopeError(CdcError):
    """A record on a change topic is not a Debezium change."""

    code = "HW-C001"


class ValueDecodeError(CdcError):
    """A value does not fit the type of its column."""

    code = "HW-C002"


class SchemaMismatchError(CdcError):
    """A record has columns that the table did not have when its views were planned."""

    code = "HW-C003"


class CaptureSpecError(CdcError):
    """A source cannot be captured as it is declared."""

    code = "HW-C004"


class ColumnRuleError(CdcError):
    """A rule for columns contradicts another, does not fit its table, or lacks its salt."""

    code = "HW-C053"
