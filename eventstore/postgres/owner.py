"""The owner's connection: sees every tenant, and says so if it does not."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from eventstore.postgres.connection import options, payloads_as_bytes
from eventstore.postgres.errors import translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection


@contextmanager
def connected(dsn: str) -> Iterator[Connection[Any]]:
    """Connects as a role that row-level security does not hold, for the length of a block.

    Its statements commit one by one, outside of `connection.transaction()`; each sees what was
    committed before it.

    Raises:
        AccessRefusedError: Row-level security would hide rows from the role.
        StoreUnavailableError: Its kinds say whether a repetition can help.
    """
    try:
        with psycopg.connect(dsn, client_encoding="utf8", **options(dsn)) as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            # a policy that hides rows is an error here, not a shorter log
            connection.execute("SET row_security = off")
            connection.execute("SET timezone = 'UTC'")
            payloads_as_bytes(connection)
            yield connection
    except psycopg.Error as error:
        raise translated(error) from error
