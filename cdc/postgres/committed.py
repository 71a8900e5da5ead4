"""Tokens for committed transactions: a log position that includes everything they have written.

The position is the end of the log after the commit was confirmed, so it is slightly later than the
commit. It costs one query and needs no special privilege.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from cdc.errors import (
    NotCapturedError,
    TokenForeignError,
    TokenFutureError,
    TokenOutdatedError,
    TransactionAbortedError,
    TransactionOpenError,
)
from cdc.lsn import Lsn
from cdc.position_token import PositionToken
from cdc.postgres import captures

if TYPE_CHECKING:
    from psycopg import Connection

    from cdc.postgres.captures import Capture

_END: Final = "SELECT pg_current_wal_insert_lsn()::text"
# queried first: the commit of a transaction that has ended precedes the end of the log
_STATUS: Final = "SELECT pg_xact_status(%s::text::xid8)"
_IN_PROGRESS: Final = "in progress"
_ABORTED: Final = "aborted"


def everything(connection: Connection[Any], source: str) -> PositionToken:
    """Returns a token of everything committed so far, by any writer.

    Args:
        connection: To the source; it must not be in a transaction.
        source: Name of the source.

    Raises:
        TransactionOpenError: The connection is in a transaction that is not committed yet.
        NotCapturedError: The source is not captured.
    """
    # without autocommit, the connection is in our own transaction after the first query
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise TransactionOpenError(
            "a transaction has no position before its commit",
            hint="commit first, then request the token",
        )
    try:
        return PositionToken(source, captured(connection, source).epoch, _end(connection))
    finally:
        if not connection.autocommit:
            connection.rollback()


def of_transaction(connection: Connection[Any], source: str, number: int) -> PositionToken:
    """Returns a token for one transaction.

    Long after the commit, its position is later than necessary; the text of a token can be kept.

    Args:
        connection: To the source, in autocommit.
        source: Name of the source.
        number: `xid8` of the transaction.

    Raises:
        TransactionOpenError: It is still running.
        TransactionAbortedError: It was rolled back, or belongs to another server.
        NotCapturedError: The source is not captured.
    """
    _require_committed(connection, number)
    return PositionToken(source, captured(connection, source).epoch, _end(connection))


def check(connection: Connection[Any], token: PositionToken, source: str) -> Capture:
    """Checks that a token is valid for a source.

    Returns:
        The recorded capture of the source.

    Raises:
        TokenForeignError: It belongs to another source.
        TokenOutdatedError: It belongs to an earlier incarnation.
        TokenFutureError: It belongs to a later one, or its position is beyond the end of the log.
        NotCapturedError: The source is not captured.
    """
    if token.source != source:
        raise TokenForeignError(
            "the token belongs to another source",
            detail=(f"token of {token.source:.63}, expected {source}"),
        )
    capture = captured(connection, source)
    if token.epoch < capture.epoch:
        raise TokenOutdatedError(
            "the token is older than a restore of the source or a repair of its capture",
            detail=f"token of epoch {token.epoch}, the epoch is now {capture.epoch}",
            hint="repeat the write if it was lost, and take a new token",
        )
    end = _end(connection)
    if token.epoch > capture.epoch or token.lsn > end:
        raise TokenFutureError(
            "the token's position is beyond the end of the source's log",
            detail=f"epoch {token.epoch}, {token.lsn}; the log ends at {capture.epoch}, {end}",
            hint=(
                "the token belongs to another database, or this one was restored to an earlier time"
            ),
        )
    return capture


def captured(connection: Connection[Any], source: str) -> Capture:
    """Returns the recorded capture of a source.

    Raises:
        NotCapturedError: It is not captured.
    """
    capture = captures.find(connection, source)
    if capture is None:
        raise NotCapturedError(
            f"source {source} is not captured",
            hint="headwater up or headwater apply starts the capture",
        )
    return capture


def _require_committed(connection: Connection[Any], number: int) -> None:
    try:
        row = connection.execute(_STATUS, (str(number),)).fetchone()
        status = row[0] if row else None
    except psycopg.errors.InvalidParameterValue:  # later than the newest transaction
        status = _ABORTED
    if status == _IN_PROGRESS:
        raise TransactionOpenError(
            "a transaction has no position before its commit", detail=f"transaction {number}"
        )
    if status == _ABORTED:
        raise TransactionAbortedError(
            "the transaction was not committed", detail=f"transaction {number}"
        )
    # the server no longer knows the status of a very old transaction, which has ended


def _end(connection: Connection[Any]) -> Lsn:
    row = connection.execute(_END).fetchone()
    return Lsn.parse(str(row[0] if row else ""))
