"""Canaries: values that occur only in the forgotten key's records, to search for afterwards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from psycopg import Connection

    from cdc.table import TableName
    from projections.erasure.archive import ArchivedTopic, Through

LENGTH_MIN: Final = 6
"""Shorter texts occur by chance."""

COUNT_MAX: Final = 20

_ROWS_AT_ONCE: Final = 1_000
_COLUMNS: Final = """
SELECT attname FROM pg_attribute
 WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


def canaries(
    connection: Connection[Any],
    table: TableName,
    topics: Iterable[ArchivedTopic],
    texts: frozenset[str],
    through: Through,
) -> frozenset[str]:
    """Chooses values that only the records of some keys have.

    Args:
        connection: To the source.
        table: The table of the keys.
        topics: Its topics in the archive.
        texts: The keys.
        through: The end of the range of records.

    Returns:
        The longest such values; empty if every value occurs elsewhere too.
    """
    candidates: set[str] = set()
    for topic in topics:
        for key, row in topic.rows(texts, through):
            candidates.update(_values(row, key))
        for _, row in topic.rows(texts, through, later=True):  # values that stay
            kept = [value for value in row.values() if isinstance(value, str)]
            candidates = {value for value in candidates if not any(value in each for each in kept)}
        chosen = sorted(candidates, key=lambda value: (-len(value), value))[: 4 * COUNT_MAX]
        candidates = set(chosen) - topic.values_elsewhere(texts, chosen)
    left = candidates - _in_table(connection, table, candidates)
    return frozenset(sorted(left, key=lambda value: (-len(value), value))[:COUNT_MAX])


def _values(row: Mapping[str, object], key: str) -> set[str]:
    return {
        value
        for value in row.values()
        if isinstance(value, str)
        and len(value) >= LENGTH_MIN
        and value not in key
        and "\0" not in value  # the placeholder of an unchanged value
    }


def _in_table(connection: Connection[Any], table: TableName, values: set[str]) -> set[str]:
    """Returns those of some values that rows of the table contain now, also within other values."""
    name = sql.Identifier(table.schema, table.name)
    columns = connection.execute(_COLUMNS, (name.as_string(connection),)).fetchall()
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(c)) for (c,) in columns)
    row = sql.SQL("concat_ws(chr(1), {})").format(texts)
    query = sql.SQL("SELECT {row} FROM {table} WHERE {row} ~ %s LIMIT {rows}").format(
        row=row, table=name, rows=sql.Literal(_ROWS_AT_ONCE)
    )
    present: set[str] = set()
    while left := values - present:
        pattern = "|".join(map(re.escape, sorted(left)))
        rows = [text for (text,) in connection.execute(query, (pattern,)).fetchall()]
        there = {value for value in left if any(value in text for text in rows)}
        if not there:
            break
        present |= there
    return present
