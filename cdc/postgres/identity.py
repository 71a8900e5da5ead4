"""Tables whose rows are told apart by something other than their primary key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.postgres import catalog
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection

_BY_INDEX: Final = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relreplident = 'i'
   AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""


def by_index(
    connection: Connection[Any], tables: Sequence[TableName]
) -> dict[TableName, tuple[str, ...]]:
    """Returns the key columns of the tables whose replica identity is an index.

    Debezium would take the primary key, which Postgres does not log for them.
    """
    names = ([table.schema for table in tables], [table.name for table in tables])
    rows = connection.execute(_BY_INDEX, names).fetchall()
    described = catalog.describe(connection, [TableName(*row) for row in rows])
    return {table: schema.key for table, schema in described.items() if schema.key}
