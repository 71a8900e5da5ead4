"""Migrations: the numbered SQL of packages, and the record of the applied ones in the database.

A package keeps its SQL in a folder. Each file `NNNN_name.sql`, or folder `NNNN_name` of such files,
is a migration: it runs once, and never changes after its release. `functions.sql` replaces
functions, and runs again whenever its text has changed.

The script for an administrator and an upgrade run the same SQL. An upgrade only reads a database
that is up to date, so a role without privileges may run it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from foundation.advisory_lock import AdvisoryLock
from foundation.waiting import looks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")

Key: TypeAlias = tuple[str, str]
"""Package and name of a migration."""

FUNCTIONS: Final = "functions"
LOCK_NOT_AVAILABLE: Final = "55P03"
"""SQLSTATE of a lock that was not free within the time."""

_WAIT_S: Final = 300.0
_PAUSE_S: Final = 0.5

# A statement that waits for a table's lock also blocks all later users of the table. An upgrade
# therefore waits at most 2 s, rolls back, and retries.
_TURN: Final = AdvisoryLock("1749230, 0")
_BEGIN: Final = f"SET LOCAL lock_timeout = '2s';\n{_TURN.in_transaction};\n"
_RECORD: Final = """\
DO $record$
BEGIN
    IF to_regclass('{schema}.migrations') IS NULL THEN
        IF to_regnamespace('{schema}') IS NULL THEN
            CREATE SCHEMA {schema};
        END IF;
        CREATE TABLE {schema}.migrations (
            package text,
            name text,
            digest text,  -- of its SQL; NULL: it ran before there was this record
            applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY (package, name)
        );
        GRANT SELECT ON {schema}.migrations TO PUBLIC;
    END IF;
END
$record$;
"""
_ADOPT: Final = """\
INSERT INTO {schema}.migrations (package, name) VALUES {keys} ON CONFLICT DO NOTHING;
"""
_RUN_ONCE: Final = """\
DO $once$
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.migrations
                    WHERE package = '{package}' AND name = '{name}') THEN
        EXECUTE $migration$
{sql}
$migration$;
        INSERT INTO {schema}.migrations (package, name, digest)
            VALUES ('{package}', '{name}', '{digest}');
    END IF;
END
$once$;
"""
_REPLACE: Final = """\
{sql}
INSERT INTO {schema}.migrations (package, name, digest)
    VALUES ('{package}', '{name}', '{digest}')
    ON CONFLICT (package, name)
    DO UPDATE SET digest = excluded.digest, applied_at = excluded.applied_at;
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration of a package.

    Attributes:
        package: The package that owns the tables.
        name: Its number and name, or `functions`.
        sql: Its statements.
    """

    package: str
    name: str
    sql: str

    @property
    def key(self) -> Key:
        """Its identity in the record."""
        return self.package, self.name

    @property
    def digest(self) -> str:
        """SHA-256 of its SQL, in hexadecimal."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations_in(folder: Path, package: str) -> list[Migration]:
    """Reads the migrations of a package, in the order in which they run.

    Args:
        folder: Folder of the SQL files.
        package: Name of the package.
    """
    numbered = sorted(folder.glob("[0-9]*_*"), key=lambda path: path.stem)
    replaced = folder.glob(f"{FUNCTIONS}.sql")
    return [Migration(package, path.stem, _sql(path)) for path in (*numbered, *replaced)]


def _sql(path: Path) -> str:
    files = sorted(path.glob("*.sql")) if path.is_dir() else [path]
    return "\n".join(file.read_text(encoding="utf-8").strip() for file in files)


def _nothing(_: Any) -> Collection[Key]:
    return ()


@dataclass(frozen=True, slots=True)
class MigrationHistory:
    """Migrations of one or more packages that are recorded in one table.

    Connections are psycopg connections in autocommit mode, or with an open transaction, which the
    methods join.

    Args:
        schema: Schema of the table `migrations` that records them; created if it is missing.
        migrations: All migrations, in the order in which they run.
        adopted: Returns the migrations that a database without a record already has.
        prepare: Runs first in the transaction of an upgrade.
        finish: SQL at the end of an upgrade.
    """

    schema: str
    migrations: tuple[Migration, ...]
    adopted: Callable[[Any], Collection[Key]] = _nothing
    prepare: Callable[[Any], object] = _nothing
    finish: str = ""

    def applied(self, connection: Any) -> Mapping[Key, str | None]:
        """Returns the applied migrations of a database, each with its digest if that is known."""
        name = f"{self.schema}.migrations"
        there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
        if not there[0]:
            return dict.fromkeys(self.adopted(connection))
        rows = connection.execute(f"SELECT package, name, digest FROM {name}".encode())  # noqa: S608
        return {(package, name): digest for package, name, digest in rows.fetchall()}

    def pending(self, applied: Mapping[Key, str | None]) -> list[Migration]:
        """Returns the migrations that a database still needs."""
        return [
            migration
            for migration in self.migrations
            if migration.key not in applied
            or (migration.name == FUNCTIONS and _differs(migration, applied[migration.key]))
        ]

    def unknown(self, applied: Mapping[Key, str | None]) -> list[str]:
        """Returns the applied migrations that are unknown to this program or differ from it."""
        known = {migration.key: migration for migration in self.migrations}
        return [
            key[1]
            for key, digest in applied.items()
            if key not in known or (key[1] != FUNCTIONS and _differs(known[key], digest))
        ]

    def upgrade(self, connection: Any, *, functions: bool = False) -> list[Migration]:
        """Runs the pending migrations in one transaction; returns the ones that it ran.

        A concurrent upgrade waits for this one. An upgrade waits at most 2 s for a lock, then rolls
        back and retries, for up to five minutes.

        Args:
            connection: Connection of a role that may create the schemas, or owns them.
            functions: Whether to replace the functions even if they are recorded as up to date,
                because they may have been dropped.

        Raises:
            psycopg.Error: The database refused a statement; nothing has changed.
        """
        if not functions and not self.pending(self.applied(connection)):
            return []
        return _in_turn(connection, lambda: self._upgrade(connection, functions=functions))

    def drop(self, connection: Any, sql: str) -> list[str]:
        """Reverts all migrations in one transaction; see `upgrade`.

        Args:
            connection: Connection of the owner.
            sql: Statements that drop the created objects.

        Returns:
            Names of the reverted migrations, newest first.

        Raises:
            psycopg.Error: The database refused a statement; nothing has changed.
        """

        def drop() -> list[str]:
            names = sorted({name for _, name in self.applied(connection)}, reverse=True)
            if names:
                forget = f"DELETE FROM {self.schema}.migrations;\n"  # noqa: S608
                connection.execute(f"{_RECORD.format(schema=self.schema)}{sql}\n{forget}".encode())
            return names

        return _in_turn(connection, drop)

    def script(
        self, pending: Sequence[Migration] | None = None, adopted: Iterable[Key] = ()
    ) -> str:
        """Returns the SQL of an upgrade, for an administrator; it is idempotent.

        Args:
            pending: Migrations to run; None: all.
            adopted: Applied migrations that the database has not recorded.
        """
        body = self._statements(self.migrations if pending is None else pending, adopted)
        return f"BEGIN;\n{_BEGIN}{body}COMMIT;\n"

    def _upgrade(self, connection: Any, *, functions: bool) -> list[Migration]:
        self.prepare(connection)
        applied = self.applied(connection)
        pending = self.pending(applied)
        again = [m for m in self.migrations if functions and m.name == FUNCTIONS]
        connection.execute(self._statements([*pending, *again], applied).encode())
        return pending

    def _statements(self, migrations: Iterable[Migration], adopted: Iterable[Key]) -> str:
        parts = [_RECORD.format(schema=self.schema)]
        if keys := ", ".join(f"('{package}', '{name}')" for package, name in adopted):
            parts.append(_ADOPT.format(schema=self.schema, keys=keys))
        for migration in migrations:
            template = _REPLACE if migration.name == FUNCTIONS else _RUN_ONCE
            parts.append(
                template.format(
                    schema=self.schema,
                    package=migration.package,
                    name=migration.name,
                    digest=migration.digest,
                    sql=migration.sql,
                )
            )
        return "".join([*parts, self.finish])


def _in_turn(connection: Any, work: Callable[[], T]) -> T:
    """Does work in a transaction; no other migration of the database runs concurrently."""
    for _ in looks(_WAIT_S, _PAUSE_S):
        try:
            with connection.transaction():
                connection.execute(_BEGIN.encode())
                return work()
        except Exception as error:
            if getattr(error, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise
            failure = error
    raise failure


def _differs(migration: Migration, digest: str | None) -> bool:
    return digest not in (None, migration.digest)
