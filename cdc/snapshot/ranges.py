"""Splits a table into ranges of its key, which are read in parallel."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from psycopg import Error, sql

from cdc.snapshot.chunk import key_texts
from cdc.snapshot.progress import KeyRange

if TYPE_CHECKING:
    from psycopg import Connection

    from cdc.snapshot.reads import Key
    from cdc.snapshot.table_facts import TableFacts

RANGE_ROWS: Final = 200_000
"""Least rows of a range: a table with fewer than twice as many is one range."""

RANGES_MAX: Final = 64
_BLOCKS_PER_RANGE: Final = 20

# One key per block: if rows are stored in key order, the keys of a block are neighbours. No column
# of the table has a name that begins like these.
_SAMPLE: Final = """
WITH one AS (SELECT DISTINCT ON (tableoid, headwater_block) * FROM (
                 SELECT {key}, tableoid, (ctid::text::point)[0] AS headwater_block
                   FROM {relation} TABLESAMPLE SYSTEM ({percent})) AS sampled),
     sorted AS (SELECT *, row_number() OVER (ORDER BY {order}) AS headwater_place,
                       count(*) OVER () AS headwater_count FROM one)
SELECT {texts} FROM sorted
 WHERE headwater_place % greatest(headwater_count / {ranges}, 1) = 0
 ORDER BY headwater_place LIMIT {ranges} - 1
"""


def split(
    connection: Connection[Any], facts: TableFacts, rows_expected: int
) -> tuple[KeyRange, ...]:
    """Returns the ranges of a table, which together contain every key that it has now.

    Keys after the last one belong to rows inserted later, which the stream delivers.

    Args:
        connection: To the source database.
        facts: The table; a table without a key is one range.
        rows_expected: Its approximate number of rows.

    Raises:
        psycopg.Error: The table cannot be read.
    """
    if not facts.key:
        return (KeyRange(),)
    last = _last(connection, facts)
    if last is None:
        return (KeyRange(done=True),)
    count = min(RANGES_MAX, rows_expected // RANGE_ROWS)
    inner = _sampled(connection, facts, count) if count > 1 else []
    bounds = [None, *dict.fromkeys(bound for bound in inner if bound != last), last]
    return tuple(KeyRange(above, through) for above, through in pairwise(bounds))


def rows_expected(
    connection: Connection[Any], facts: TableFacts, predicate: str | None
) -> int | None:
    """Returns the server's estimate of the rows of a snapshot; None if it has none.

    Raises:
        psycopg.Error: The condition is invalid.
    """
    where: sql.Composable = sql.SQL("")
    if predicate is not None:
        where = sql.SQL(" WHERE ({}\n)").format(sql.SQL(predicate))
    query = sql.SQL("EXPLAIN (FORMAT JSON) SELECT FROM {}{}").format(facts.relation, where)
    # prepared, because a prepared statement is a single one
    row = connection.execute(query, prepare=True).fetchone()
    found = row[0][0]["Plan"].get("Plan Rows") if row else None
    return None if found is None else int(found)


def _last(connection: Connection[Any], facts: TableFacts) -> Key | None:
    query = sql.SQL("SELECT {} FROM {} ORDER BY {} LIMIT 1").format(
        sql.SQL(", ").join(key_texts(facts.schema)),
        facts.relation,
        sql.SQL(", ").join(sql.SQL("{} DESC").format(column) for column in facts.key),
    )
    return connection.execute(query).fetchone()


def _sampled(connection: Connection[Any], facts: TableFacts, count: int) -> list[Key]:
    percent = min(100.0, 100.0 * _BLOCKS_PER_RANGE * count / max(1, facts.pages))
    query = sql.SQL(_SAMPLE).format(
        key=sql.SQL(", ").join(map(sql.Identifier, facts.schema.key)),
        relation=facts.relation,
        percent=sql.Literal(percent),
        order=sql.SQL(", ").join(facts.key),
        texts=sql.SQL(", ").join(key_texts(facts.schema)),
        ranges=sql.Literal(count),
    )
    try:
        return connection.execute(query).fetchall()
    except Error:
        return []  # not every kind of table can be sampled; one range is correct, too
