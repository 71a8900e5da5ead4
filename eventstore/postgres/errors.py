"""Translates errors of Postgres into errors of the event store."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors as postgres
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from eventstore.errors import (
    AccessRefusedError,
    ContentionError,
    EventRefusedError,
    EventStoreError,
    IdempotencyConflictError,
    PrimaryNeededError,
    ResultUnknownError,
    SchemaMissingError,
    StoreUnavailableError,
)

CONTENTION: Final = (
    postgres.SerializationFailure,
    postgres.DeadlockDetected,
    postgres.LockNotAvailable,
)
_SCHEMA: Final = (
    postgres.UndefinedTable,
    postgres.UndefinedFunction,
    postgres.InvalidSchemaName,
    postgres.UndefinedColumn,
    postgres.UndefinedObject,
)
_CONTENT: Final = (psycopg.DataError, postgres.StatementTooComplex)
_GOODBYE: Final = ("08", "57P")  # connection lost, server or session ended

_REFUSED_HERE: Final = "HWE02"  # 12_order.sql

EVENT_ID: Final = "uq_events_event_id"
STREAM_POSITION: Final = "uq_events_stream_position"
IDEMPOTENCY_KEY: Final = "pk_idempotency_keys"
# A transaction with an old snapshot violates the first two after a concurrent append.
_CONFLICTS: Final = (STREAM_POSITION, IDEMPOTENCY_KEY, EVENT_ID)


def violated(error: psycopg.Error) -> str | None:
    """Returns the name of the unique constraint that an error reports; None for other errors."""
    return error.diag.constraint_name if isinstance(error, postgres.UniqueViolation) else None


def translated(error: psycopg.Error, *, writing: bool = False) -> EventStoreError:
    """Returns the store's error for a driver's error.

    Args:
        error: Raised by the driver.
        writing: Whether a statement that commits by itself was in progress.
    """
    if isinstance(error, CONTENTION) or violated(error) in _CONFLICTS:
        return _conflict(error)
    if isinstance(error, _SCHEMA):
        return SchemaMissingError(
            "the database has no event store, or one of another version",
            detail=error.diag.message_primary,
            hint="headwater db upgrade",
        )
    if error.sqlstate == _REFUSED_HERE or isinstance(error, postgres.ReadOnlySqlTransaction):
        return _refused_here(error)
    if isinstance(error, postgres.InsufficientPrivilege):
        return AccessRefusedError(
            "the role lacks the privilege for this tenant",
            detail=error.diag.message_primary,
            hint="headwater db grant ROLE [--tenant TENANT]",
        )
    if isinstance(error, _CONTENT):
        return _refused_content(error)
    return _unavailable(error, writing=writing)


def _conflict(error: psycopg.Error) -> EventStoreError:
    if violated(error) == EVENT_ID:
        # the caller's transaction has failed, so the first result cannot be looked up in it
        return IdempotencyConflictError(
            "an event with this id is already stored",
            detail="the transaction that the append joined has failed",
            hint="give each event its own id; to repeat an append of events with ids, omit "
            "connection, or pass an idempotency key",
        )
    return ContentionError(
        "the transaction conflicted with another",
        detail=type(error).__name__,
        hint="run the whole transaction again",
    )


def _refused_here(error: psycopg.Error) -> PrimaryNeededError:
    if error.sqlstate == _REFUSED_HERE:
        return PrimaryNeededError(
            error.diag.message_primary or "the log cannot be read on this server",
            hint=error.diag.message_hint,
        )
    return PrimaryNeededError(
        "the server or the session is read-only",
        detail="a standby, or default_transaction_read_only",
        hint="connect to the primary; target_session_attrs=read-write in the DSN selects it",
    )


def _refused_content(error: psycopg.Error) -> EventRefusedError:
    if isinstance(error, postgres.UntranslatableCharacter):
        return EventRefusedError(
            "Postgres cannot store a character",
            detail="NUL, or a character that the database's encoding does not have",
            hint="leave out NUL, and create the database with ENCODING 'UTF8'",
        )
    return EventRefusedError(
        "Postgres rejects a value",
        detail=type(error).__name__,
        hint="payload and metadata must be JSON without NUL, nested less than a thousand levels",
    )


def _unavailable(error: psycopg.Error, *, writing: bool) -> EventStoreError:
    if isinstance(error, postgres.OutOfMemory):
        return StoreUnavailableError(
            "the server's lock table is full",
            detail=error.diag.message_primary,
            hint="append to fewer streams and with fewer different tags in one transaction, "
            "or raise max_locks_per_transaction",
        )
    # With any other SQLSTATE, the server has responded and rolled back.
    cut = isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate.startswith(_GOODBYE)
    )
    if isinstance(error, PoolTimeout | PoolClosed | TooManyRequests):
        cut = False  # nothing was sent
    if writing and cut:
        return ResultUnknownError(
            "the connection broke during a commit",
            detail=type(error).__name__,
            hint="repeat the call with the same idempotency key; it returns the first result",
        )
    message, hint = _explained(error)
    return StoreUnavailableError(
        message, detail=f"{type(error).__name__} {error.sqlstate or ''}".strip(), hint=hint
    )


def _explained(error: psycopg.Error) -> tuple[str, str]:
    """Returns message and hint for an error that says that the database did not do it now."""
    if isinstance(error, PoolClosed):
        return "the store is closed", "close it after its last use, or create another store"
    if isinstance(error, PoolTimeout | TooManyRequests):
        return (
            "no connection became free in time",
            "use fewer threads or tasks at once, or a larger connections_max",
        )
    if isinstance(error, postgres.QueryCanceled):
        return (
            "the statement was cancelled",
            "by statement_timeout of the role or database, or by an administrator",
        )
    if isinstance(error, postgres.InFailedSqlTransaction):
        return (
            "the transaction has failed already",
            "an earlier statement of it failed: roll it back, and run all of it again",
        )
    if not isinstance(error, psycopg.OperationalError):
        return "the database refused a statement", "see the server's log"
    return (
        "the database is unavailable",
        "see the server's log, and whether the connection was closed",
    )
