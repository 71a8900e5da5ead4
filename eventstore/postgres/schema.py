"""The version of the schema: read, check, upgrade, downgrade."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors as postgres

from eventstore.errors import AccessRefusedError, SchemaMissingError
from eventstore.postgres.connection import check_address
from eventstore.postgres.errors import translated
from foundation.migration import MigrationHistory, migrations_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from foundation.migration import Key


def folder() -> Path:
    """Returns where the migrations are."""
    return Path(__file__).parents[1] / "migrations"


def _names() -> list[str]:
    return sorted(path.name for path in folder().glob("[0-9]*_*"))


LATEST: Final = _names()[-1]
"""The revision that this code works with."""

_PACKAGE: Final = "eventstore"
_SCHEMA: Final = "headwater_migrations"
"""A downgrade keeps this schema when it drops the schemas of the event store."""

_UPGRADE: Final = "headwater db upgrade"
# Older releases, which migrated with Alembic, read this table and refuse an unknown version.
_FORMER: Final = f"{_SCHEMA}.alembic_version"
_FORMER_VERSION: Final = f"SELECT max(version_num) FROM {_FORMER}"  # noqa: S608
_TELL_FORMER: Final = """
DO $former$
BEGIN
    IF to_regclass('{table}') IS NOT NULL THEN
        UPDATE {table} SET version_num = '{version}';
    END IF;
END
$former$;
"""
_DROP: Final = f"""
DROP SCHEMA IF EXISTS eventstore CASCADE;
DROP SCHEMA IF EXISTS eventstore_keys CASCADE;
DO $former$
BEGIN
    IF to_regclass('{_FORMER}') IS NOT NULL THEN
        DELETE FROM {_FORMER};
    END IF;
END
$former$;
"""  # noqa: S608  # built from constants only


def current(dsn: str) -> str | None:
    """Returns the revision of a database; None if it has no event store.

    Raises:
        StoreUnavailableError: The database does not answer.
    """
    check_address(dsn)
    try:
        with psycopg.connect(dsn) as connection:
            applied = _history(LATEST).applied(connection)
            return max((name for _, name in applied), default=None)
    except psycopg.Error as error:
        raise translated(error) from error


def check(dsn: str) -> None:
    """Checks that a database has the event store version that this program needs.

    Raises:
        SchemaMissingError: It has no event store, or an older or newer version.
        StoreUnavailableError: The database does not answer.
    """
    found = current(dsn)
    if found == LATEST:
        return
    if found is None:
        raise SchemaMissingError("the database has no event store", hint=_UPGRADE)
    if found not in _names():
        raise _unknown(f"its version is {found}, the latest known is {LATEST}")
    raise SchemaMissingError(
        "the event store in the database has an older version",
        detail=f"its version is {found}, this program needs {LATEST}",
        hint=_UPGRADE,
    )


def upgrade(dsn: str, *, through: str | None = None) -> list[str]:
    """Upgrades a database to the latest revision, in one transaction.

    A concurrent upgrade waits for this one. Other schemas are not changed. It waits at most 2 s for
    a table that another session uses, then gives it back and repeats, for up to five minutes.

    Args:
        dsn: `postgresql://…`, or libpq's `key=value` form. Its role needs CREATE on the database,
            and will own the event store.
        through: The last revision to apply; None: the latest one.

    Returns:
        The applied revisions, oldest first; empty if the database was up to date.

    Raises:
        SchemaMissingError: The database has a revision unknown to this program.
        AccessRefusedError: The role lacks a privilege.
        StoreUnavailableError: The database does not answer, or not in time.
    """
    history = _history(through or LATEST)
    with _connected(dsn) as connection:
        _check_known(history, connection)
        return [migration.name for migration in history.upgrade(connection)]


def downgrade(dsn: str) -> list[str]:
    """Drops the event store with every event and every key, in one transaction.

    Args:
        dsn: See `upgrade`; the role owns the event store.

    Returns:
        The reverted revisions, newest first; empty if there was no event store.

    Raises:
        SchemaMissingError: The database has a revision unknown to this program.
        AccessRefusedError: The role lacks a privilege.
        StoreUnavailableError: The database does not answer, or not in time.
    """
    history = _history(LATEST)
    with _connected(dsn) as connection:
        if not _check_known(history, connection):
            return []
        return history.drop(connection, _DROP)


def upgrade_script(dsn: str) -> str:
    """Returns the SQL that `upgrade` would run; empty if the database is up to date.

    Raises:
        SchemaMissingError: The database has a revision unknown to this program.
        StoreUnavailableError: The database does not answer.
    """
    history = _history(LATEST)
    with _connected(dsn) as connection:
        applied = _check_known(history, connection)
    pending = history.pending(applied)
    return history.script(pending, applied) if pending else ""


@contextmanager
def _connected(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    check_address(dsn)
    try:
        with psycopg.connect(
            dsn, autocommit=True, application_name="headwater migrations"
        ) as connection:
            # sees what those before it have committed, whatever the database's default is
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            yield connection
    except postgres.InsufficientPrivilege as error:
        raise AccessRefusedError(
            "this role may not change the schema",
            detail=error.diag.message_primary,
            hint="run it as the owner: GRANT CREATE ON DATABASE … TO …, or another role in the DSN",
        ) from error
    except psycopg.Error as error:
        raise translated(error) from error


def _check_known(
    history: MigrationHistory, connection: psycopg.Connection[Any]
) -> Mapping[Key, str | None]:
    """Returns the applied migrations of a database, each identical to this program's."""
    applied = history.applied(connection)
    if unknown := history.unknown(applied):
        raise _unknown(f"it has {', '.join(unknown)}; the latest known is {LATEST}")
    return applied


@cache
def _history(through: str) -> MigrationHistory:
    migrations = [each for each in migrations_in(folder(), _PACKAGE) if each.name <= through]
    finish = _TELL_FORMER.format(table=_FORMER, version=through)
    return MigrationHistory(_SCHEMA, tuple(migrations), adopted=_adopted, finish=finish)


def _adopted(connection: psycopg.Connection[Any]) -> list[Key]:
    """Returns the version that Alembic recorded in an older release."""
    there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (_FORMER,)).fetchone()
    found = connection.execute(_FORMER_VERSION).fetchone() if there == (True,) else None
    version = found and found[0]
    if version is None:
        return []
    names = {name for name in _names() if name <= version} | {version}
    return [(_PACKAGE, name) for name in sorted(names)]


def _unknown(detail: str) -> SchemaMissingError:
    return SchemaMissingError(
        "the event store in the database has a version unknown to this program",
        detail=detail,
        hint="pip install --upgrade headwater",
    )
