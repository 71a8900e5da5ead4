"""Converts the causes of a failed or waiting snapshot into errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from cdc.errors import CdcError
from cdc.snapshot.errors import ReadDelayedError, SnapshotError, WritersInTheWayError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.postgres.transaction import OpenTransaction
    from cdc.snapshot.reads import Read
    from cdc.table import TableName


def named(read: Read, error: Exception) -> CdcError:
    """Returns the error of a snapshot; it states whether a retry can help."""
    if isinstance(error, CdcError):
        return error
    if not isinstance(error, psycopg.Error):  # its text is foreign, and may contain a value
        return ReadDelayedError(
            f"table {read.table} cannot be snapshotted now", detail=type(error).__name__
        )
    message = error.diag.message_primary or type(error).__name__
    if isinstance(error, psycopg.DataError):
        message = f"{type(error).__name__} ({error.sqlstate})"  # the message contains the value
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        passing = read.predicate is None  # the next look at the table reports the cause
    else:
        passing = isinstance(error, psycopg.OperationalError | psycopg.InternalError)
    if passing:
        return ReadDelayedError(f"table {read.table} cannot be snapshotted now", detail=message)
    return SnapshotError(
        f"table {read.table} cannot be snapshotted",
        detail=message,
        hint=f"remove the cause, then run headwater source resnapshot {read.table}",
    )


def writers(table: TableName, in_the_way: Sequence[OpenTransaction]) -> WritersInTheWayError:
    """Returns the error that names the transactions for which a snapshot waits."""
    return WritersInTheWayError(
        f"transactions that write to {table} stay open",
        detail="; ".join(map(str, in_the_way)),
        hint="end them (pg_terminate_backend, ROLLBACK PREPARED); the snapshot then continues",
    )


def text(error: CdcError) -> str:
    """Returns the text that is stored with a snapshot."""
    return f"{error.code} {error.message}" + (f": {error.detail}" if error.detail else "")
