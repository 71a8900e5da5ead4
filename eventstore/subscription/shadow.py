"""Shadow: temporary tables that replace a view's own tables while it is rebuilt."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql

from eventstore.errors import SubscriptionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from eventstore.subscription.session import RunnerSession

# Resolves a table name without a schema, and returns the key and columns of the table.
_TABLE = (
    "SELECT c.oid, n.nspname, c.relkind IN ('r', 'p') AND c.relpersistence <> 't',"
    " ARRAY(SELECT a.attname::text FROM pg_index AS i"
    "        JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
    "       WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY a.attnum),"
    " ARRAY(SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = c.oid"
    "         AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum)"
    " FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE c.oid = to_regclass(quote_ident(%s))"
)
# Rows that this session has written to permanent tables and has not yet reported to the server's
# statistics, by table.
_WRITTEN = (
    "SELECT schemaname || '.' || relname, n_tup_ins + n_tup_upd + n_tup_del"
    " FROM pg_stat_xact_user_tables WHERE n_tup_ins + n_tup_upd + n_tup_del > 0"
    " AND schemaname !~ '^pg_temp'"
)
_COUNTED = "SELECT current_setting('track_counts')::boolean"


class _Table(NamedTuple):
    """One of the view's tables."""

    own: sql.Identifier
    shadow: sql.Identifier
    key: list[str]
    columns: list[str]


class Shadow:
    """The temporary tables of one rebuild; they exist until the session ends.

    Args:
        session: Session of the rebuild.
        subscription: Name of the subscription, for errors.
        tables: Names of the view's tables.
    """

    def __init__(self, session: RunnerSession, subscription: str, tables: Sequence[str]) -> None:
        self._session = session
        self._subscription = subscription
        self._names = tables
        self._tables: list[_Table] = []

    async def make(self) -> None:
        """Creates the temporary tables, empty.

        Raises:
            SubscriptionError: A table does not exist, has no primary key, or is not an ordinary
                table; or the server does not count writes.
        """
        if not await self._session.value(_COUNTED):
            raise SubscriptionError(
                "the server does not count writes, so a rebuild cannot detect writes to other"
                " tables",
                hint="set track_counts = on for the role or the database",
            )
        for name in self._names:
            self._tables.append(await self._found(name))
        for table in self._tables:
            made = sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {} INCLUDING ALL)")
            await self._do(made.format(table.shadow, table.own))

    @asynccontextmanager
    async def guarded(self) -> AsyncIterator[None]:
        """Checks that the body writes only to the temporary tables.

        Raises:
            SubscriptionError: The body wrote to another table.
        """
        before = await self._written()
        yield
        after = await self._written()
        strayed = sorted(name for name, count in after.items() if before.get(name, 0) != count)
        if strayed:
            raise SubscriptionError(
                f"the handler of subscription {self._subscription} writes to tables that the"
                " rebuild does not replace",
                detail=", ".join(strayed)[:200],
                hint="name them in tables, and write to them without a schema; nothing was changed",
            )

    async def exchange(self) -> tuple[int, int]:
        """Makes the view's tables equal to the shadow.

        Returns:
            The numbers of deleted and inserted rows.
        """
        removed = added = 0
        for table in self._tables:
            names = {"own": table.own, "new": table.shadow, "same": _same(table.key)}
            lock = sql.SQL("LOCK TABLE {own} IN SHARE ROW EXCLUSIVE MODE")
            await self._do(lock.format(**names))
            await self._do(sql.SQL("ANALYZE {new}").format(**names))
            gone = sql.SQL(
                "DELETE FROM {own} AS own WHERE NOT EXISTS (SELECT FROM {new} AS new"
                " WHERE {same} AND own.*::text = new.*::text)"
            )
            removed += await self._do(gone.format(**names))
            columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
            come = sql.SQL(
                "INSERT INTO {own} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns}"
                " FROM {new} AS new WHERE NOT EXISTS (SELECT FROM {own} AS own WHERE {same})"
            )
            added += await self._do(come.format(columns=columns, **names))
        return removed, added

    async def _found(self, name: str) -> _Table:
        row: Any = await self._session.row(_TABLE, (name,))
        if row is None or not row[2] or not row[3]:
            raise SubscriptionError(
                f"subscription {self._subscription} names a table that cannot be rebuilt",
                detail=f"{name!r:.100}: "
                + ("there is none in the search path" if row is None
                   else "it is no ordinary table" if not row[2] else "it has no primary key"),
                hint="an ordinary table with a primary key, named without a schema",
            )  # fmt: skip
        _, schema, _, key, columns = row
        return _Table(sql.Identifier(schema, name), sql.Identifier("pg_temp", name), key, columns)

    async def _written(self) -> dict[str, int]:
        rows = await self._session.rows(_WRITTEN)
        return {row[0]: row[1] for row in rows}

    async def _do(self, asked: sql.Composed) -> int:
        return await self._session.change(asked.as_string(None))


def _same(key: Sequence[str]) -> sql.Composed:
    pairs = [sql.SQL("own.{0} = new.{0}").format(sql.Identifier(column)) for column in key]
    return sql.SQL(" AND ").join(pairs)
