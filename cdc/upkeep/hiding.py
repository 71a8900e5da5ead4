"""Checks column rules against their tables, and determines which columns are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.errors import ColumnRuleError
from cdc.postgres import catalog
from cdc.postgres.check import Check, CheckState
from foundation.suggestion import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.table import TableName

_PLACE: Final = ("ctid", "tableoid")


def checks(connection: Connection[Any], spec: CaptureSpec) -> Iterator[Check]:
    """Checks every table with column rules; changes nothing.

    A rule for a missing column is refused: the name may be misspelt, and the column that it should
    hide would be captured.
    """
    described = catalog.describe(connection, spec.columns)
    for table, rules in sorted(spec.columns.items()):
        schema = described.get(table)
        if schema is None:
            continue  # another check reports the missing table
        name = f"columns {table}"
        unknown = rules.unknown(schema)
        if unknown:
            hint = did_you_mean(unknown[0], schema.by_name, "take it out of the rules")
            yield Check(name, CheckState.FAIL, f"there is no column {unknown[0]}", hint=hint)
            continue
        try:
            taken = rules.applied(schema)
        except ColumnRuleError as error:
            yield Check(name, CheckState.FAIL, error.message, hint=error.hint)
            continue
        hidden = len(schema.columns) - len(taken.columns)
        treated = len(rules.treated)
        yield Check(name, CheckState.OK, f"{hidden} stay, {treated} are hashed or masked")


def columns_read(connection: Connection[Any], spec: CaptureSpec) -> dict[TableName, list[str]]:
    """Returns the columns that are read, for each table with excluded columns.

    The role needs no privilege for excluded columns; it needs one for hashed and masked columns. It
    also reads system columns, by which a large table is split into ranges.
    """
    described = catalog.describe(connection, spec.columns)
    return {
        table: [*taken, *_PLACE]
        for table, rules in spec.columns.items()
        if (schema := described.get(table)) is not None
        and len(taken := [c.name for c in schema.columns if rules.takes(c.name)])
        < len(schema.columns)
    }
