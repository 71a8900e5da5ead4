"""The schema `headwater` in the source: the heartbeat row and how far each view has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from psycopg import Connection

QUERY: Final = (
    "INSERT INTO headwater.heartbeat (id, beat_at) VALUES (1, clock_timestamp()) "
    "ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at"
)
"""What the connector runs at every heartbeat."""

_SCHEMA: Final = """
CREATE SCHEMA IF NOT EXISTS headwater;
CREATE TABLE IF NOT EXISTS headwater.heartbeat (
    id int PRIMARY KEY,
    beat_at timestamptz NOT NULL
);
INSERT INTO headwater.heartbeat (id, beat_at) VALUES (1, clock_timestamp())
    ON CONFLICT (id) DO NOTHING;
CREATE TABLE IF NOT EXISTS headwater.view_positions (
    view text,
    store text,
    source text NOT NULL,
    applied_through pg_lsn NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (view, store)
);
"""
_EXISTS: Final = """
SELECT to_regclass('headwater.heartbeat') IS NOT NULL
   AND to_regclass('headwater.view_positions') IS NOT NULL
"""


def exists(connection: Connection[Any]) -> bool:
    """Tells whether the schema is there."""
    row = connection.execute(_EXISTS).fetchone()
    return bool(row and row[0])


def ensure(connection: Connection[Any]) -> list[str]:
    """Creates the schema if it is missing; returns what was changed."""
    if exists(connection):
        return []  # a role without CREATE may run it when an owner has prepared the schema
    with connection.transaction():
        connection.execute(_SCHEMA)
    return ["created schema headwater with the heartbeat table"]
