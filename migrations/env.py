"""What Alembic runs for every command: `headwater db`, or `alembic -x dsn=DSN …` by hand.

The revisions that are in force are kept in a schema of their own, `headwater_migrations`: it stays
when a downgrade drops the event store's schemas, and it is nobody else's `alembic_version`.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, Final

import psycopg
from alembic import context
from alembic.util import CommandError
from sqlalchemy import create_engine, pool

_TABLES: Final = runpy.run_path(str(Path(__file__).with_name("tables.py")))
_VERSION_SCHEMA: Final = "headwater_migrations"
_OPTIONS: Final[dict[str, Any]] = {
    "target_metadata": _TABLES["metadata"],
    "version_table_schema": _VERSION_SCHEMA,
    "include_schemas": True,
    "include_name": lambda name, kind, _: kind != "schema" or name in _TABLES["SCHEMAS"],
    "compare_type": True,
    "compare_server_default": True,
    "on_version_apply": lambda *, step, **_: _note(step.up_revision_id),
    "autogenerate_plugins": ["alembic.autogenerate.*", "alembic.ext.checkconstraint_byname"],
}
# Asked first: CREATE SCHEMA IF NOT EXISTS wants a privilege even where the schema exists.
_MAKE_SCHEMA: Final = f"""
DO $$
BEGIN
    IF to_regnamespace('{_VERSION_SCHEMA}') IS NULL THEN
        CREATE SCHEMA {_VERSION_SCHEMA};
    END IF;
END
$$
"""
# Two that migrate at the same time take turns, and the second finds nothing left to do.
_TAKE_TURNS: Final = "SELECT pg_advisory_xact_lock(1749230, 0)"
# For that turn, and for tables that a long transaction holds.
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '5min'"


def _note(revision: str) -> None:
    """Tells who called what was done; `headwater db` hands in a list for it."""
    context.config.attributes.get("done", []).append(revision)


def _print_sql() -> None:
    context.configure(dialect_name="postgresql", **_OPTIONS)
    with context.begin_transaction():
        for statement in (_LOCK_TIMEOUT, _TAKE_TURNS, _MAKE_SCHEMA):
            context.get_context().impl.static_output(f"{statement.strip()};\n")
        context.run_migrations()


def _run(dsn: str) -> None:
    # The driver reads the DSN, in either of libpq's forms, and each statement sees what those
    # before it in another session committed, whatever the database's default is.
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(dsn, application_name="headwater migrations"),
        isolation_level="READ COMMITTED",
        poolclass=pool.NullPool,
    )
    with engine.begin() as connection:
        context.configure(connection=connection, **_OPTIONS)
        if not context.get_context().opts.get("dont_mutate"):
            for statement in (_LOCK_TIMEOUT, _TAKE_TURNS, _MAKE_SCHEMA):
                connection.exec_driver_sql(statement)
        with context.begin_transaction():
            context.run_migrations()


def _dsn() -> str:
    given = context.config.attributes.get("dsn")
    asked = given or context.get_x_argument(as_dictionary=True).get("dsn")
    if not isinstance(asked, str):
        raise CommandError("say which database: alembic -x dsn=postgresql://… COMMAND")
    return asked


if context.is_offline_mode():
    _print_sql()
else:
    _run(_dsn())
