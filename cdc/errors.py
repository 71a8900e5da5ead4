"""Errors of change data capture.

CdcError
├── EnvelopeError        HW-C001  a record is not a Debezium change
├── ValueDecodeError     HW-C002  a value does not fit its column's type
├── SchemaMismatchError  HW-C003  a record has other columns than the table had
├── CaptureSpecError     HW-C004  a source cannot be captured as it is declared
├── ColumnRuleError      HW-C053  a column rule cannot be applied
├── TokenError           HW-C080  a position token is invalid or cannot be made
│   ├── TokenMalformedError      HW-C081  the text is not a token
│   ├── TransactionOpenError     HW-C082  a transaction has no position before its commit
│   ├── TransactionAbortedError  HW-C083  a transaction was rolled back
│   ├── TokenForeignError        HW-C084  the token belongs to another source
│   ├── TokenOutdatedError       HW-C085  the token is older than a restore or a repair
│   ├── TokenFutureError         HW-C086  the token is beyond the end of the log
│   └── NotCapturedError         HW-C087  the source is not captured
├── PostgresError        HW-C01x  the source database
├── ConnectError         HW-C02x  Kafka Connect and the connector
└── BrokerError          HW-C03x  Kafka
"""

from __future__ import annotations

from foundation.errors import EXIT_USAGE, PlatformError


class CdcError(PlatformError):
    """Root of this package's errors."""

    code = "HW-C000"


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
    exit_code = EXIT_USAGE


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
    exit_code = EXIT_USAGE


class TokenOutdatedError(TokenError):
    """The token is older than a restore of the source or a repair of its capture."""

    code = "HW-C085"


class TokenFutureError(TokenError):
    """The token's position is beyond the end of the source's log."""

    code = "HW-C086"


class NotCapturedError(TokenError):
    """The source's log is not captured, so no view will reach the token."""

    code = "HW-C087"
