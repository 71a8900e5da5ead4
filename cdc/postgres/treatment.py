"""SQL that hashes and masks columns, as the connector does in Java.

A session that hashes keeps the salt in a session setting (`prepare`), so that no statement contains
it: statements may be logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

if TYPE_CHECKING:
    from psycopg import Connection

    from cdc.table import Treatment

_SALT: Final = "headwater.salt"

# What a type prints, as the log has it; a row of NULLs `IS NULL` as well, but it is a value.
_PRINTED: Final = "CASE WHEN num_nulls({0}) = 0 THEN format('%s', {0}) END"
_SALTED: Final = f"current_setting('{_SALT}') || {_PRINTED}"
_HASH: Final = f"encode(sha256(convert_to({_SALTED}, 'UTF8')), 'hex')"
_MASK: Final = "CASE WHEN num_nulls({0}) = 0 THEN {1} END"


def prepare(connection: Connection[Any], salt: str | None) -> None:
    """Gives a session the salt that `expression` hashes with, until it ends."""
    if salt is not None:
        connection.execute("SELECT set_config(%s, %s, false)", (_SALT, salt))


def expression(column: str, treatment: Treatment) -> sql.Composable:
    """Returns an SQL expression for the text that is sent instead of a column's value."""
    name = sql.Identifier(column)
    if treatment.mask_length is not None:
        return sql.SQL(_MASK).format(name, sql.Literal("*" * treatment.mask_length))
    return sql.SQL(_HASH).format(name)
