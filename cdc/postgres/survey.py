"""What of a database can be captured without harm, and why the rest is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.capture import OWN_TABLES, TOPIC_LENGTH_MAX
from cdc.postgres import identity, value_check
from cdc.postgres.check import CheckState
from cdc.postgres.identity import FaultKind
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import Connection

# Tables by any name; partitions are their root's. What an extension has made is the extension's.
_TABLES: Final = """
SELECT n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
                  AND d.objid = c.oid AND d.deptype = 'e')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND n.nspname <> 'headwater'
 ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Survey:
    """The tables of a database.

    Attributes:
        tables: What can be captured: no statement of the application is refused for it, and every
            row is told apart.
        left_out: Why each other table is not among them.
    """

    tables: tuple[TableName, ...]
    left_out: Mapping[TableName, str]


def survey(connection: Connection[Any], source: str) -> Survey:
    """Looks at every table of a database; reading only.

    Args:
        connection: To the database.
        source: Prefix of the topics.
    """
    left_out: dict[TableName, str] = {}
    tables = []
    for schema, name, kind, persistence, extension in connection.execute(_TABLES).fetchall():
        table = TableName(schema, name)
        if kind == "f":
            left_out[table] = "is a foreign table"
        elif persistence == "u":
            left_out[table] = "is an unlogged table"
        elif extension:
            left_out[table] = "is part of an extension"
        else:
            tables.append(table)
    for table, faults in identity.faults(connection, tables).items():
        serious = [fault for fault in faults if fault.kind is not FaultKind.LATER]
        if serious:
            left_out[table] = serious[0].message
    for check in value_check.names(connection, tables):
        if check.state is CheckState.FAIL:
            named = next(table for table in tables if check.name == f"table {table}")
            left_out.setdefault(named, check.message)
    rest = [table for table in tables if table not in left_out]
    left_out |= _topics(source, rest)
    return Survey(tuple(table for table in rest if table not in left_out), left_out)


def _topics(source: str, tables: list[TableName]) -> dict[TableName, str]:
    """Tables that cannot have a topic of their own."""
    seen = {table.topic(source).replace(".", "_"): table for table in OWN_TABLES}
    refused = {}
    for table in tables:
        topic = table.topic(source)
        other = seen.setdefault(topic.replace(".", "_"), table)
        if other != table:
            refused[table] = f"would share a topic with {other}"
        elif len(topic) > TOPIC_LENGTH_MAX:
            refused[table] = "has a name that is too long for a topic"
    return refused
