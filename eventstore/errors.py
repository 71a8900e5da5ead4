"""Errors of the event store.

EventStoreError
├── NameRefusedError             HW-E001  a stream, tenant, tag or key cannot have this name
├── EventRefusedError            HW-E002  an event cannot be stored exactly as it was given
├── BatchRefusedError            HW-E003  an append is empty, too large or contradicts itself
├── WrongExpectedVersionError    HW-E010  the stream is at another version than the writer thought
├── IdempotencyConflictError     HW-E011  the key was used for another payload
├── ConditionFailedError         HW-E012  an event came in that the decision had not seen
├── Rejected                     HW-E013  the command is refused by the domain's own rules
├── AccessRefusedError           HW-E014  the database's role may not act for this tenant
├── IsolationRefusedError        HW-E015  a decision across streams in a transaction with a snapshot
├── UndeclaredError              HW-E020  a type, version, command or decider is not declared
│   └── WrongKindError           HW-E023  an async function, a class or another kind was handed over
├── UpcastError                  HW-E021  a stored event cannot be brought to the latest version
├── SubjectKeyError              HW-E022  a personal field cannot be encrypted or decrypted
├── CheckpointBeyondHeadError    HW-E030  a checkpoint is ahead of the log: a restore is suspected
├── WaitTimeoutError             HW-E031  a view or the log did not reach a position in time
├── SubscriptionError            HW-E032  a subscription cannot run as it is declared
├── CompactionError              HW-E040  a stream cannot be compacted as asked
├── AuditError                   HW-E041  the log is not what was sealed
├── EffectRefusedError           HW-E060  the receiver of an effect refuses it for good
├── DependencyAwayError          HW-E061  what an effect needs does not answer, or asks for a pause
└── StoreUnavailableError        HW-E050  the database did not do it now
    ├── ContentionError          HW-E051  deadlocks or serialization failures beyond the bound
    ├── SchemaMissingError       HW-E052  the database has no event store, or an older one
    ├── ResultUnknownError       HW-E053  the connection broke while a commit was under way
    ├── PrimaryNeededError       HW-E054  a standby, or a session that may not read or write the log
    └── LoginRefusedError        HW-E055  the server refuses the login, or the DSN cannot be read
"""

from __future__ import annotations

from foundation.errors import EXIT_UNHEALTHY, EXIT_USAGE, PlatformError


class EventStoreError(PlatformError):
    """Root of this package's errors."""

    code = "HW-E000"


class NameRefusedError(EventStoreError):
    """A stream, category, tenant, tag, type or idempotency key cannot have this name."""

    code = "HW-E001"
    exit_code = EXIT_USAGE


class EventRefusedError(EventStoreError):
    """An event cannot be stored so that it reads back exactly as it was appended."""

    code = "HW-E002"
    exit_code = EXIT_USAGE


class BatchRefusedError(EventStoreError):
    """An append has no events, too many or too large events, or contradicts itself."""

    code = "HW-E003"
    exit_code = EXIT_USAGE


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
    exit_code = EXIT_USAGE


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
    exit_code = EXIT_UNHEALTHY


class WaitTimeoutError(EventStoreError):
    """A view or the log did not reach a position in time."""

    code = "HW-E031"
    retriable = True


class SubscriptionError(EventStoreError):
    """A subscription cannot run as declared."""

    code = "HW-E032"
    exit_code = EXIT_USAGE


class CompactionError(EventStoreError):
    """A stream cannot be compacted, or a retention rule applied, as asked."""

    code = "HW-E040"


class AuditError(EventStoreError):
    """The log differs from its seals."""

    code = "HW-E041"
    exit_code = EXIT_UNHEALTHY


class EffectRefusedError(EventStoreError):
    """The receiver of a reactor's effect refuses it; repeating it changes nothing."""

    code = "HW-E060"


class DependencyAwayError(EventStoreError):
    """A dependency of a reactor's effect does not answer, is overloaded or asks for a pause."""

    code = "HW-E061"
    retriable = True


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
    exit_code = EXIT_UNHEALTHY
    retriable = False


class ResultUnknownError(StoreUnavailableError):
    """The connection broke during a commit; the transaction may or may not have committed."""

    code = "HW-E053"


class PrimaryNeededError(StoreUnavailableError):
    """The server is a standby, or the session's settings forbid the log's reads or writes."""

    code = "HW-E054"
    retriable = False


class LoginRefusedError(StoreUnavailableError):
    """The server refuses the user, password or database of the DSN, or the DSN cannot be read."""

    code = "HW-E055"
    retriable = False
