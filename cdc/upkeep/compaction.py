"""Checks tables with compacted topics, which keep only the latest record of each key.

An update that leaves a large value unchanged does not log the value: only an older record of the
key contains it. Once that record is compacted away, no record contains the value. A store with the
row still has it, but a reader that starts from the topic alone never gets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from cdc.postgres import catalog, row_key
from cdc.postgres.check import Check, CheckState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.table import TableName

_LEFT_OUT: Final = f"""
SELECT c.relreplident = 'f',
       (SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{{}}') FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
           AND {row_key.CAPTURED} AND a.attlen = -1 AND a.attstorage <> 'p')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""  # noqa: S608  # built from constants only


def checks(connection: Connection[Any], spec: CaptureSpec) -> Iterator[Check]:
    """Checks the tables whose topics are compacted; changes nothing."""
    tables = [table for table, policy in spec.retention.items() if policy.latest]
    described = catalog.describe(connection, tables)
    for table in sorted(tables):
        schema = described.get(table)
        if schema is None:
            continue  # another check reports the missing table
        name = f"retention {table}"
        if not schema.key:
            message = "latest needs a key: without one the topic would keep a single row"
            hint = "give the table a primary key, or a retention of time or size"
            yield Check(name, CheckState.FAIL, message, hint=hint)
            continue
        yield _values(connection, table, name)


def _values(connection: Connection[Any], table: TableName, name: str) -> Check:
    row = connection.execute(_LEFT_OUT.encode(), (table.schema, table.name)).fetchone()
    whole, columns = row or (True, [])
    if whole or not columns:
        return Check(name, CheckState.OK, "every record of a key holds the whole row")
    quoted = sql.Identifier(table.schema, table.name).as_string(connection)
    return Check(
        name,
        CheckState.WARN,
        "latest may be a record without its large values, which are then in no record",
        f"columns {', '.join(columns)}: an update that does not change them leaves them out; "
        "stores that hold the row keep them, one built from the topic alone does not get them",
        f"ALTER TABLE {quoted} REPLICA IDENTITY FULL;",
    )
