"""The version of the schema: read, check, upgrade, downgrade."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors as postgres

from eventstore.errors import AccessRefusedError, SchemaMissingError
from eventstore.postgres.connection import check_address
from eventstore.postgres.errors import translated

if TYPE_CHECKING:
    from eventstore.errors import EventStoreError

LATEST: Final = "0006_reactors"
"""The revision that this code works with."""

VERSION_TABLE: Final = "headwater_migrations.alembic_version"
"""Where the database says which revision it is at."""

_CURRENT: Final = "SELECT version_num FROM headwater_migrations.alembic_version"
# Alembic keeps what it works on in a module: two threads would work on each other's database.
_one_at_a_time = threading.Lock()
_UPGRADE: Final = "headwater db upgrade"


def current(dsn: str) -> str | None:
    """Returns the revision of a database; None if it has no event store.

    Raises:
        StoreUnavailableError: The database does not answer.
    """
    check_address(dsn)
    try:
        with psycopg.connect(dsn) as connection:
            return _current(connection)
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
    if not (folder() / "versions" / f"{found}.py").is_file():
        raise _unknown(f"its version is {found}, the latest known is {LATEST}")
    raise SchemaMissingError(
        "the event store in the database has an older version",
        detail=f"its version is {found}, this program needs {LATEST}",
        hint=_UPGRADE,
    )


def upgrade(dsn: str) -> list[str]:
    """Upgrades a database to the latest revision, in one transaction.

    A concurrent upgrade waits for this one. Other schemas are not changed.

    Args:
        dsn: `postgresql://…`, or libpq's `key=value` form. Its role needs CREATE on the database,
            and will own the event store.

    Returns:
        The applied revisions, oldest first; empty if the database was up to date.

    Raises:
        SchemaMissingError: The database has a revision unknown to this program.
        AccessRefusedError: The role lacks a privilege.
        StoreUnavailableError: The database does not answer, or not in time.
    """
    return _migrate(dsn, "upgrade", "head")


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
    return _migrate(dsn, "downgrade", "base")


def upgrade_script(dsn: str) -> str:
    """Returns the SQL that `upgrade` would run; empty if the database is up to date.

    Raises:
        SchemaMissingError: The database has a revision unknown to this program.
        StoreUnavailableError: The database does not answer.
    """
    found = current(dsn)
    if found == LATEST:
        return ""
    written = io.StringIO()
    _alembic("upgrade", f"{found}:head" if found else "head", written, sql=True)
    return written.getvalue()


def _current(connection: psycopg.Connection[Any]) -> str | None:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (VERSION_TABLE,)).fetchone()
    if row != (True,):
        return None
    found = connection.execute(_CURRENT).fetchone()
    return None if found is None else str(found[0])


def _migrate(dsn: str, verb: str, revision: str) -> list[str]:
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # only a migration loads it

    check_address(dsn)
    try:
        return _alembic(verb, revision, io.StringIO(), dsn=dsn)
    except psycopg.Error as error:
        raise _refused(error) from error
    except DBAPIError as error:
        if not isinstance(error.orig, psycopg.Error):
            raise
        raise _refused(error.orig) from error


def _alembic(verb: str, revision: str, written: io.StringIO, **given: Any) -> list[str]:
    """Runs one of Alembic's commands; returns the revisions that it went through."""
    from alembic import command  # noqa: PLC0415  # half a second that only a migration waits for
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    done: list[str] = []
    sql = bool(given.pop("sql", False))
    config = Config(output_buffer=written, attributes={**given, "done": done})
    # Alembic fills in %(name)s; a folder may have any name.
    config.set_main_option("script_location", str(folder()).replace("%", "%%"))
    try:
        with _one_at_a_time:
            getattr(command, verb)(config, revision, sql=sql)
    except CommandError as error:
        raise _unknown(str(error)) from error
    return done


def folder() -> Path:
    """Returns where the migrations are: in the installed package, or in the repository."""
    packaged = Path(__file__).parents[1] / "_migrations"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "migrations"


def _unknown(detail: str) -> SchemaMissingError:
    return SchemaMissingError(
        "the event store in the database has a version unknown to this program",
        detail=detail,
        hint="pip install --upgrade headwater",
    )


def _refused(error: psycopg.Error) -> EventStoreError:
    if not isinstance(error, postgres.InsufficientPrivilege):
        return translated(error)
    return AccessRefusedError(
        "this role may not change the schema",
        detail=error.diag.message_primary,
        hint="run it as the owner: GRANT CREATE ON DATABASE … TO …, or another role in the DSN",
    )
