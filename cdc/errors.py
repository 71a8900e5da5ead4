"""Errors of change data capture.

CdcError
├── EnvelopeError        HW-C001  a record on a change topic is not a Debezium change
├── ValueDecodeError     HW-C002  a value does not fit the type of its column
├── SchemaMismatchError  HW-C003  a record has other columns than the table had
├── CaptureSpecError     HW-C004  a source cannot be captured as declared
├── ColumnRuleError      HW-C053  a column rule contradicts another
├── TokenError           HW-C080  root of the errors of position tokens
│   ├── TokenMalformedError      HW-C081  the text is not a position token
│   ├── TransactionOpenError     HW-C082  a transaction has no position before its commit
│   ├── TransactionAbortedError  HW-C083  nothing of a transaction was committed
│   ├── TokenForeignError        HW-C084  the token belongs to another source
│   ├── TokenOutdatedError       HW-C085  it is from before a restore or a repair
│   ├── TokenFutureError         HW-C086  the token's position is beyond the end of the source's log
│   └── NotCapturedError         HW-C087  the source's log is not captured
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
    """A source cannot be captured as declared."""

    code = "HW-C004"


class ColumnRuleError(CdcError):
    """A column rule contradicts another, does not fit its table, or lacks its salt."""

    code = "HW-C053"


class TokenError(CdcError):
    """Root of the errors of position tokens."""

    code = "HW-C080"


class TokenMalformedError(TokenError):
    """The text is not a position token."""

    code = "HW-C081"


class TransactionOpenError(TokenError):
    """A token was requested for a transaction that may still be rolled back."""

    code = "HW-C082"
    retriable = True


class TransactionAbortedError(TokenError):
    """A token was requested for a transaction that was rolled back or does not exist."""

    code = "HW-C083"


class TokenForeignError(TokenError):
    """The token belongs to another source."""

    code = "HW-C084"


class TokenOutdatedError(TokenError):
    """The token is older than a restore of the source or a repair of its capture."""

    code = "HW-C085"


class TokenFutureError(TokenError):
    """The token's position is beyond the end of the source's log."""

    code = "HW-C086"


class NotCapturedError(TokenError):
    """The source's log is not captured, so no view will reach the token."""

    code = "HW-C087"
