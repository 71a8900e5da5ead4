"""What of a source's values and names cannot be carried exactly, said before capture begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.postgres import row_key
from cdc.postgres.check import Check, CheckState
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from psycopg import Connection

# The connector refuses such a table when its first change comes, and then all tables stand still.
_ALIKE: Final = f"""
SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum)
  FROM pg_attribute a
  JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE a.attnum > 0 AND NOT a.attisdropped AND {row_key.CAPTURED}
   AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
 GROUP BY 1, 2, lower(a.attname)
HAVING count(*) > 1
"""  # noqa: S608  # put together from constants only


def encoding(connection: Connection[Any]) -> Check:
    """Looks at the database's encoding: without one its texts are bytes that anybody may read."""
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
    """Looks for columns whose names differ by case alone.

    Args:
        connection: To the source database.
        tables: What shall be captured.
        columns: Tables of which these columns alone are captured.
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
