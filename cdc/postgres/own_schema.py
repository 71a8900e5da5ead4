"""The schema `headwater` in the source: heartbeat, captures, snapshots, positions of views.

Each package has migrations for its tables (`cdc/migrations`, `projections/migrations`). They run
here, or an administrator runs them beforehand for a role that may not create the schema.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from psycopg.errors import InsufficientPrivilege, LockNotAvailable

from cdc.postgres import own_schema_owner
from cdc.postgres.errors import PostgresUnavailableError, SchemaOwnerError
from foundation.migration import FUNCTIONS, MigrationHistory, migrations_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from psycopg import Connection

    from foundation.migration import Migration

BEAT: Final = (
    "INSERT INTO headwater.heartbeat AS h (id, beat_at, number) VALUES (1, clock_timestamp(), 1) "
    "ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, number = h.number + 1"
)
"""Statement that the connector runs at every heartbeat: a number missing in the topic is a missing
change."""

_PACKAGES: Final = ("cdc", "projections")
"""Packages with tables in the schema; each owns its SQL, which is only read here."""

MIGRATIONS: Final = tuple(
    migration
    for package in _PACKAGES
    for migration in migrations_in(Path(__file__).parents[2] / package / "migrations", package)
)

_TABLE: Final = re.compile(r"^CREATE TABLE IF NOT EXISTS headwater\.(\w+)", re.MULTILINE)


def _tables(migrations: Iterable[Migration]) -> tuple[str, ...]:
    return tuple(name for each in migrations for name in _TABLE.findall(each.sql))


TABLES: Final = _tables(MIGRATIONS)
RECORD: Final = "migrations"
"""Table of the applied migrations."""

_FIRST: Final = tuple(each for each in MIGRATIONS if each.name < "0002" or each.name == FUNCTIONS)
"""Stands for releases before migrations were recorded."""

_EXISTS: Final = """
SELECT bool_and(to_regclass('headwater.' || name) IS NOT NULL)
       AND to_regprocedure('headwater.may_stream(text)') IS NOT NULL
  FROM unnest(%s::text[]) AS name
"""
_COMPLETE: Final = """
SELECT EXISTS (SELECT FROM pg_attribute
                WHERE attrelid = to_regclass('headwater.alert_episodes') AND attname = 'until'
                  AND NOT attisdropped)
"""
"""Whether the last column added before migrations were recorded exists."""

# Our tables were created in one transaction with the heartbeat, which has always had these columns.
_ANOTHERS: Final = """
SELECT array_agg(c.relname::text ORDER BY c.relname) FROM pg_class c
 WHERE c.relnamespace = to_regnamespace('headwater') AND c.relname = ANY (%s::text[])
   AND (SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('headwater.heartbeat')
           AND attname IN ('id', 'beat_at') AND NOT attisdropped) < 2
"""
"""Relations with names of our tables, in a schema of other origin."""


def exists(connection: Connection[Any]) -> bool:
    """Returns whether the schema exists, from this or an earlier release."""
    return _has(connection, _tables(_FIRST))


def pending(connection: Connection[Any]) -> bool:
    """Returns whether the schema is missing or older than this program."""
    return bool(_HISTORY.pending(_HISTORY.applied(connection)))


def ensure(connection: Connection[Any]) -> list[str]:
    """Creates the missing parts of the schema; returns what was changed.

    Raises:
        SchemaOwnerError: It contains foreign relations with our names, or another role owns it.
        PostgresUnavailableError: Another session uses its tables for too long.
    """
    row = connection.execute(_ANOTHERS, ([*TABLES, RECORD],)).fetchone()
    if row and row[0]:
        raise SchemaOwnerError(
            "schema headwater contains objects that Headwater did not create",
            detail=", ".join(row[0]),
            hint="rename it with ALTER SCHEMA headwater RENAME TO; Headwater needs this name",
        )
    there = exists(connection)
    if there and not pending(connection):
        return []  # a role without CREATE may run it when an owner has prepared the schema
    made(connection)
    return ["added to schema headwater" if there else "created schema headwater"]


def made(connection: Connection[Any]) -> None:
    """Creates the missing parts of the schema, and always its functions.

    Raises:
        SchemaOwnerError: It belongs to another role, which has to do this.
        PostgresUnavailableError: Another session uses its tables for too long.
    """
    try:
        _HISTORY.upgrade(connection, functions=True)
    except InsufficientPrivilege as error:
        raise SchemaOwnerError(
            "schema headwater belongs to another role and is incomplete",
            detail=error.diag.message_primary,
            hint="an administrator must run the SQL that headwater source role prints",
        ) from error
    except LockNotAvailable as error:
        raise PostgresUnavailableError(
            "schema headwater cannot be upgraded while other sessions use it",
            detail=error.diag.message_primary,
            hint="end what holds the locks: see pg_locks; then repeat it",
        ) from error


def script() -> str:
    """Returns the SQL that creates the schema, for an administrator; it can be repeated."""
    return _HISTORY.script()


def _has(connection: Connection[Any], tables: Sequence[str]) -> bool:
    row = connection.execute(_EXISTS, (list(tables),)).fetchone()
    return bool(row and row[0])


def _adopted(connection: Connection[Any]) -> list[tuple[str, str]]:
    if not _has(connection, _tables(_FIRST)):
        return []
    complete = connection.execute(_COMPLETE).fetchone() == (True,)
    return [each.key for each in _FIRST] if complete else []


_HISTORY: Final = MigrationHistory(
    "headwater", MIGRATIONS, adopted=_adopted, prepare=own_schema_owner.take_as_superuser
)
