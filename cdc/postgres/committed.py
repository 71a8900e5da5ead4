"""Committed: after which position of the log everything is that a transaction has written.

The place is where the log ends once the commit was answered, so it is a little later than the
commit itself. It costs one question and no right that an ordinary role does not have.
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
# asked for first: a transaction that has ended by now has its commit before the end of the log
_STATUS: Final = "SELECT pg_xact_status(%s::text::xid8)"
_IN_PROGRESS: Final = "in progress"
_ABORTED: Final = "aborted"


def everything(connection: Connection[Any], source: str) -> PositionToken:
    """Returns a token of everything committed so far, by any writer.

    Args:
        connection: To the source; its own transaction has to be over.
        source: Name of the source.

    Raises:
        TransactionOpenError: The connection is in a transaction, whose commit is yet to come.
        NotCapturedError: The source is not captured.
    """
    # a connection that is not in autocommit is in a transaction of ours after the first question
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
    """Returns a token of what one transaction has written.

    Asked for long after the commit it names a later place than it need to; its text can be kept.

    Args:
        connection: To the source, in autocommit.
        source: Name of the source.
        number: `xid8` of the transaction.

    Raises:
        TransactionOpenError: It is not over.
        TransactionAbortedError: It was rolled back, or is not of this server.
        NotCapturedError: The source is not captured.
    """
    _require_committed(connection, number)
    return PositionToken(source, captured(connection, source).epoch, _end(connection))


def check(connection: Connection[Any], token: PositionToken, source: str) -> Capture:
    """Makes sure that a token means something in a source.

    Returns:
        What is noted of the source's capture.

    Raises:
        TokenForeignError: It is of another source.
        TokenOutdatedError: It is of an earlier incarnation.
        TokenFutureError: It is of a later one, or its position is beyond the end of the log.
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
    """Returns what is noted of a source's capture.

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
    except psycopg.errors.InvalidParameterValue:  # beyond the newest one
        status = _ABORTED
    if status == _IN_PROGRESS:
        raise TransactionOpenError(
            "a transaction has no position before its commit", detail=f"transaction {number}"
        )
    if status == _ABORTED:
        raise TransactionAbortedError(
            "the transaction was not committed", detail=f"transaction {number}"
        )
    # a very old one has no status any more: it is over, whichever way


def _end(connection: Connection[Any]) -> Lsn:
    row = connection.execute(_END).fetchone()
    return Lsn.parse(str(row[0] if row else ""))
