"""Which tables of a source have escaped names in their topics: `headwater.escaped_topics`.

A row remains when its table is renamed, because views continue to read the topic of the former
name. A database set up by an earlier release may lack this table: then no name is escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.postgres import own_schema
from cdc.postgres.check import Check, CheckState
from cdc.table import TableName
from cdc.topic_names import TopicNames

if TYPE_CHECKING:
    from collections.abc import Collection

    from psycopg import Connection

_EXISTS: Final = "SELECT to_regclass('headwater.escaped_topics') IS NOT NULL"
_READ: Final = "SELECT table_schema, table_name FROM headwater.escaped_topics WHERE source = %s"
_ADD: Final = """
INSERT INTO headwater.escaped_topics (source, table_schema, table_name) VALUES (%s, %s, %s)
ON CONFLICT DO NOTHING
"""
_REMOVE: Final = """
DELETE FROM headwater.escaped_topics WHERE source = %s AND table_schema = %s AND table_name = %s
"""
_CAPTURED: Final = """
SELECT DISTINCT table_schema, table_name FROM headwater.snapshots WHERE source = %s
"""


def names(connection: Connection[Any], source: str) -> TopicNames:
    """Returns the captured topic names of a source."""
    if connection.execute(_EXISTS).fetchone() != (True,):
        return TopicNames(source)
    rows = connection.execute(_READ, (source,)).fetchall()
    return TopicNames(source, frozenset(TableName(schema, name) for schema, name in rows))


def differing(
    connection: Connection[Any], declared: TopicNames, tables: Collection[TableName]
) -> list[TableName]:
    """Returns the tables whose declared topic differs from the recorded one."""
    return sorted((names(connection, declared.source).escaped ^ declared.escaped) & set(tables))


def note(
    connection: Connection[Any], declared: TopicNames, tables: Collection[TableName]
) -> list[str]:
    """Records which table names of a source are escaped; returns what was changed."""
    changed = differing(connection, declared, tables)
    with connection.transaction():
        for table in changed:
            query = _ADD if table in declared.escaped else _REMOVE
            connection.execute(query, (declared.source, table.schema, table.name))
    return [f"topic of {table} is {declared.of(table)}" for table in changed]


def forget(connection: Connection[Any], source: str) -> None:
    """Deletes the records of a source."""
    if connection.execute(_EXISTS).fetchone() == (True,):
        connection.execute("DELETE FROM headwater.escaped_topics WHERE source = %s", (source,))


def checks(
    connection: Connection[Any], declared: TopicNames, tables: Collection[TableName]
) -> list[Check]:
    """Refuses a changed topic for a captured table: its views would lose the former topic."""
    changed = differing(connection, declared, tables)
    if not changed or not own_schema.exists(connection):
        return []
    rows = connection.execute(_CAPTURED, (declared.source,)).fetchall()
    captured = {TableName(schema, name) for schema, name in rows}
    before = names(connection, declared.source)
    return [
        Check(
            "topics",
            CheckState.FAIL,
            f"table {table} is captured in topic {before.of(table)}, and a topic keeps its name",
            hint=f"{'list' if table in before.escaped else 'do not list'} it in escaped_topics",
        )
        for table in changed
        if table in captured
    ]
