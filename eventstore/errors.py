"""Errors of the event store.

EventStoreError
├── NameRefusedError             HW-E001  a stream
├── EventRefusedError            HW-E002  an event cannot be stored exactly as it was given
├── BatchRefusedError            HW-E003  an append has no events
├── WrongExpectedVersionError    HW-E010  the stream is not at the version that the writer expected
├── IdempotencyConflictError     HW-E011  the idempotency key was used before, for another payload
├── ConditionFailedError         HW-E012  an event came in that the decision had not seen
├── Rejected                     HW-E013  the command is refused by the domain's own rules
├── AccessRefusedError           HW-E014  the database role may not act for this tenant
├── IsolationRefusedError        HW-E015  a decision across streams in a transaction with a snapshot
├── UndeclaredError              HW-E020  an event type
│   └── WrongKindError           HW-E023  an argument has the wrong kind
├── UpcastError                  HW-E021  a stored event cannot be brought to the latest version
├── SubjectKeyError              HW-E022  a personal field cannot be encrypted
├── CheckpointBeyondHeadError    HW-E030  a checkpoint is ahead of the log
├── WaitTimeoutError             HW-E031  a view or the log did not reach a position in time
├── SubscriptionError            HW-E032  a subscription cannot run as declared
├── CompactionError              HW-E040  a stream cannot be compacted
├── AuditError                   HW-E041  the log differs from its seals
└── StoreUnavailableError        HW-E050  the database is unavailable now; nothing was written
    ├── ContentionError          HW-E051  deadlocks or serialization failures beyond the bound
    ├── SchemaMissingError       HW-E052  the database has no event store, or one of another version
    ├── ResultUnknownError       HW-E053  the connection broke during a commit
    └── PrimaryNeededError       HW-E054  the server is a standby
"""

from __future__ import annotations

from typing import ClassVar


class EventStoreError(Exception):
    """Root of this package's errors.

    Args:
        message: Lowercase statement without a full stop.
        detail: The observed facts; never a payload or a secret.
        hint: The remedy.
    """

    code: ClassVar[str] = "HW-E000"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint


class NameRefusedError(EventStoreError):
    """A stream, category, tenant, tag, type or idempotency key cannot have this name."""

    code = "HW-E001"


class EventRefusedError(EventStoreError):
    """An event cannot be stored so that it reads back exactly as it was appended."""

    code = "HW-E002"


class BatchRefusedError(EventStoreError):
    """An append has no events, too many or too large events, or contradicts itself."""

    code = "HW-E003"


class WrongExpectedVersionError(EventStoreError):
    """The stream is not at the version that the writer expected.

    Attributes:
        stream: Name of the stream.
        expected: What the writer expected, as an `ExpectedVersion` number.
        actual: The stream's version; 0 if there is no such stream.
    """

    code = "HW-E010"
    retriable = True  # after reading the stream again

    def __init__(self, stream: str, *, expected: int, actual: int) -> None:
        names = {-1: "any version", -2: "an existing stream", 0: "no stream"}
        super().__init__(
            f"stream {stream} is not at the expected version",
            detail=f"expected {names.get(expected, f'version {expected}')}, it is at {actual}",
            hint="read the stream again, decide again, append with its version",
        )
        self.stream = stream
        self.expected = expected
        self.actual = actual


class IdempotencyConflictError(EventStoreError):
    """The idempotency key was used before, for another payload."""

    code = "HW-E011"


class ConditionFailedError(EventStoreError):
    """An event that the decision did not read matches the append's condition."""

    code = "HW-E012"
    retriable = True  # after reading the boundary again


class Rejected(EventStoreError):  # noqa: N818  # a verdict of the domain, not a fault
    """The command is refused by the domain's own rules; nothing was written.

    Subclass it for the domain's reasons, or raise it with a message.
    """

    code = "HW-E013"


class AccessRefusedError(EventStoreError):
    """The database role may not act for this tenant, or lacks a privilege."""

    code = "HW-E014"


class IsolationRefusedError(EventStoreError):
    """An append condition cannot be checked in a REPEATABLE READ or SERIALIZABLE transaction."""

    code = "HW-E015"


class UndeclaredError(EventStoreError):
    """An event type, a version of it, a command or a decider is not declared."""

    code = "HW-E020"


class WrongKindError(UndeclaredError):
    """An argument has the wrong kind: an async function, a class, another log."""

    code = "HW-E023"


class UpcastError(EventStoreError):
    """A stored event cannot be upcast to the latest version of its type."""

    code = "HW-E021"


class SubjectKeyError(EventStoreError):
    """A personal field cannot be encrypted, or its ciphertext is not genuine."""

    code = "HW-E022"


class CheckpointBeyondHeadError(EventStoreError):
    """A checkpoint is ahead of the log, so the log was restored to an earlier time."""

    code = "HW-E030"


class WaitTimeoutError(EventStoreError):
    """A view or the log did not reach a position in time."""

    code = "HW-E031"
    retriable = True


class SubscriptionError(EventStoreError):
    """A subscription cannot run as declared."""

    code = "HW-E032"


class CompactionError(EventStoreError):
    """A stream cannot be compacted, or a retention rule applied, as asked."""

    code = "HW-E040"


class AuditError(EventStoreError):
    """The log differs from its seals."""

    code = "HW-E041"


class StoreUnavailableError(EventStoreError):
    """The database is unavailable now; nothing was written."""

    code = "HW-E050"
    retriable = True


class ContentionError(StoreUnavailableError):
    """Deadlocks or serialization failures continued up to the limit of attempts."""

    code = "HW-E051"


class SchemaMissingError(StoreUnavailableError):
    """The database has no event store, or one of another version."""

    code = "HW-E052"
    retriable = False


class ResultUnknownError(StoreUnavailableError):
    """The connection broke during a commit; the transaction may or may not have committed."""

    code = "HW-E053"


class PrimaryNeededError(StoreUnavailableError):
    """The server is a standby, or the session's settings forbid the log's reads or writes."""

    code = "HW-E054"
    retriable = False
