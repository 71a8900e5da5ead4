"""The owner's connection: sees every tenant, or fails."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from eventstore.postgres.connection import options
from eventstore.postgres.errors import translated
from eventstore.postgres.loaders import loads_as_stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection


@contextmanager
def connected(dsn: str) -> Iterator[Connection[Any]]:
    """Opens a connection as a role that is exempt from row-level security, for a block.

    Outside `connection.transaction()`, each statement is a transaction of its own and sees the
    earlier commits.

    Raises:
        AccessRefusedError: Row-level security would hide rows from the role.
        StoreUnavailableError: The database is unavailable; the subclass tells whether a retry can
            help.
    """
    try:
        with psycopg.connect(dsn, **options(dsn)) as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            # of statements outside of transactions, which a database may set otherwise
            connection.execute("SET default_transaction_isolation TO 'read committed'")
            # an error instead of a silently shorter log if a policy would hide rows
            connection.execute("SET row_security = off")
            connection.execute("SET timezone = 'UTC'; SET datestyle = 'ISO'")
            loads_as_stored(connection)
            yield connection
    except psycopg.Error as error:
        raise translated(error) from error
