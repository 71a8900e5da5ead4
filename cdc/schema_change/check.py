"""Checks whether the declared tables still have the names with which they were captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdc.postgres import own_schema
from cdc.postgres.check import Check, CheckState
from cdc.schema_change import history

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection

    from cdc.table import TableName


def checks(connection: Connection[Any], tables: Iterable[TableName]) -> list[Check]:
    """Returns a failing check for each table that was renamed since it was captured."""
    if not own_schema.exists(connection):
        return []
    return [
        Check(
            "renamed",
            CheckState.FAIL,
            f"{old} is called {new} now: its changes have not been captured since",
            hint=f"declare {new} instead of {old} in the views module, then run headwater up: "
            "the table is snapshotted again, and its views continue",
        )
        for old, new in history.renamed(connection, tables).items()
    ]
