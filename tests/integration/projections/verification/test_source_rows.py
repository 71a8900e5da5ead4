"""The source's rows are read along their key, whatever type it has."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from cdc.postgres import catalog
from cdc.snapshot.progress import KeyRange
from cdc.table import TableName
from projections.definition.views import Store
from projections.planning.view_plan import ViewPlan
from projections.verification.source_rows import SourceRows, session_of

pytestmark = pytest.mark.integration

TABLE = TableName("public", "keyed")
KEYS = {
    "bigint": "g - 100",
    "numeric": "(g - 100) * 1.5",
    "double precision": "(g - 100) / 4.0",
    "jsonb": "to_jsonb(g)",
    "uuid": "md5(g::text)::uuid",
    "timestamptz": "timestamptz '9990-01-01' + g * interval '1 month'",
    "bytea": "decode(lpad(to_hex(g), 8, '0'), 'hex')",
    'text COLLATE "C"': "'k' || g",
    "text[]": "ARRAY[g::text, 'a,b']",
}


@pytest.mark.parametrize("kind", KEYS)
def test_each_row_is_read_once_in_short_statements_along_an_index(database: str, kind: str) -> None:
    """The texts of most types have another order than their values."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE keyed (key {kind} PRIMARY KEY, n bigint)".encode())
        connection.execute(
            f"INSERT INTO keyed SELECT {KEYS[kind]}, g FROM generate_series(1, 200) g".encode()  # noqa: S608
        )
        schema = catalog.describe(connection, [TABLE])[TABLE]
    plan = ViewPlan("v", "t", "t.public.keyed", schema, ("key",), frozenset({Store.TABLE}))
    with session_of(database) as connection:
        rows, last, found = SourceRows(connection, plan), None, []
        while (chunk := rows.chunk(last, 7)).last is not None:
            last = chunk.last
            found += [row["n"] for row in chunk.part.documents()]
        query = rows.query_within(KeyRange(last), 7, sql.SQL("key::text AS key"))
        planned = connection.execute(b"EXPLAIN " + query.as_bytes(connection)).fetchall()

    assert list(range(1, 201)) == sorted(found)
    assert not any("Sort" in line for (line,) in planned)
