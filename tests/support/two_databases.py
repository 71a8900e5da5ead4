"""Two databases of one project: orders in one, their invoices in the other."""

from __future__ import annotations

from typing import Final

import psycopg

ORDERS: Final = """
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL);
INSERT INTO orders SELECT i, 'new' FROM generate_series(1, 200) i;
"""
INVOICES: Final = """
CREATE TABLE invoices (order_id bigint PRIMARY KEY, note text NOT NULL);
INSERT INTO invoices SELECT i, 'note ' || i FROM generate_series(1, 100) i;
"""


def execute(dsn: str, statement: str, *values: object) -> None:
    """Runs statements in a database, and commits them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode(), values or None)
