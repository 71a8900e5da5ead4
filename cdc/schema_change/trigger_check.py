"""Checks whether the source's event triggers record shape changes, and are secure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdc.postgres import catalog, own_schema_owner, provider
from cdc.postgres.check import Check, CheckState
from cdc.schema_change import trigger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg import Connection

    from cdc.table import TableName

_NAME = "event triggers"
_LOOKING = (
    "changes of tables are noticed by comparison: the position of one in the log is not exact"
)


def checks(connection: Connection[Any], tables: Sequence[TableName]) -> Iterator[Check]:
    """Checks the event triggers, if there are any; read-only.

    Args:
        connection: To the source database.
        tables: The captured tables.
    """
    if not trigger.existing(connection):
        if not trigger.superuser(connection):
            yield _by_looking(connection)
        return
    if trigger.active(connection):
        yield Check(_NAME, CheckState.OK, "note each change of a table")
        return
    if trigger.allowed(connection):
        yield Check(_NAME, CheckState.OK, "will be recreated")
        return
    hint = "an administrator must run the SQL that headwater source role prints"
    if not own_schema_owner.trusted(connection):
        message = "the owner of schema headwater could run statements as a superuser by them"
        detail = "those of this version write nothing then, and changes are found by looking"
        yield Check(_NAME, CheckState.WARN, message, detail, hint)
        return
    # triggers of earlier versions omit these columns: every comparison would differ
    generated = catalog.published_generated_columns(connection, tables)
    state = CheckState.FAIL if generated else CheckState.WARN
    yield Check(_NAME, state, "are those of another version of Headwater", hint=hint)


def _by_looking(connection: Connection[Any]) -> Check:
    message = "there are none: Headwater creates them as a superuser only"
    managed = provider.detect(connection)
    if managed is not None:
        message = f"there are none: {managed.title} gives no role of a superuser"
    hint = None if managed else "an administrator may run the SQL that headwater source role prints"
    return Check(_NAME, CheckState.WARN, message, _LOOKING, hint)
