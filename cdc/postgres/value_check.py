"""Finds values and names of a source that cannot be captured exactly, before capture begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.postgres import row_key
from cdc.postgres.check import Check, CheckState
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from psycopg import Connection

# The connector fails at the first change of such a table, and then no table is captured.
_ALIKE: Final = f"""
SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum)
  FROM pg_attribute a
  JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE a.attnum > 0 AND NOT a.attisdropped AND {row_key.CAPTURED}
   AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
 GROUP BY 1, 2, lower(a.attname)
HAVING count(*) > 1
"""  # noqa: S608  # built from constants only


def encoding(connection: Connection[Any]) -> Check:
    """Checks the database's encoding: without one, texts are arbitrary bytes."""
    name = str(connection.info.parameter_status("server_encoding"))
    if name != "SQL_ASCII":
        return Check("encoding", CheckState.OK, name)
    return Check(
        "encoding",
        CheckState.FAIL,
        "the database does not know what its texts mean",
        f"server_encoding is {name}: bytes that are not UTF-8 would arrive altered",
        "move the data into a database with ENCODING 'UTF8'",
    )


def names(
    connection: Connection[Any],
    tables: Sequence[TableName],
    columns: Mapping[TableName, Sequence[str]] | None = None,
) -> Iterator[Check]:
    """Finds columns whose names differ only by case.

    Args:
        connection: To the source database.
        tables: Tables to capture.
        columns: Tables with only these columns captured.
    """
    wanted = ([table.schema for table in tables], [table.name for table in tables])
    for schema, name, alike in connection.execute(_ALIKE.encode(), wanted).fetchall():
        table = TableName(schema, name)
        captured = [c for c in alike if columns is None or c in columns.get(table, alike)]
        if len(captured) > 1:
            yield Check(
                f"table {table}",
                CheckState.FAIL,
                f"has columns that differ by case alone: {', '.join(captured)}",
                "the connector would end with the first change of the table",
                "rename one of them, or leave it out of the table's captured columns",
            )
