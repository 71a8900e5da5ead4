"""Checks of the tables to capture: their row identity, and the parts that are not captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.postgres import catalog, identity
from cdc.postgres.check import Check, CheckState
from cdc.postgres.identity import FaultKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from psycopg import Connection

    from cdc.postgres.identity import TableFault
    from cdc.table import TableName

_ALONE: Final = "TRUNCATE of one partition alone is not in the log"
_INSERT_ONLY: Final = "insert_only: Postgres refuses UPDATE and DELETE while it is captured"
_BY_ROW: Final = "inserts are captured and mirrored row by row"
_NAMES_SHOWN: Final = 5


def checks(
    connection: Connection[Any],
    tables: Sequence[TableName],
    insert_only: Collection[TableName],
    published: Collection[TableName],
) -> Iterator[Check]:
    """Checks the row identity of each table, and its parts that are not captured.

    Args:
        connection: To the source database.
        tables: Tables to capture; missing ones are skipped.
        insert_only: Tables declared so: Postgres may refuse UPDATE and DELETE on them.
        published: Tables on which Postgres refuses UPDATE and DELETE already, if it ever will.
    """
    schemas = catalog.describe(connection, tables)
    found = identity.faults(connection, tables)
    below = identity.children(connection, tables)
    left_out = catalog.generated_columns(connection, tables)
    partitioned = identity.partitioned(connection, tables)
    for table in tables:
        name = f"table {table}"
        for fault in found.get(table, ()):
            yield (
                Check(name, CheckState.OK, _INSERT_ONLY, _BY_ROW)
                if table in insert_only and fault.kind is FaultKind.REFUSED
                else _fault(name, fault, published=table in published)
            )
        if table not in schemas:
            continue
        if schemas[table].key:
            if table not in found:
                # the publication logs a TRUNCATE of the whole table, but not of a single partition
                alone = f"its rows stay in the views until headwater source resnapshot {table}"
                yield (
                    Check(name, CheckState.OK, f"has a key; {_ALONE}", alone)
                    if table in partitioned
                    else Check(name, CheckState.OK, "has a key")
                )
        elif table not in found:
            message = "has no primary key: rows are never changed in its views"
            yield Check(name, CheckState.WARN, message, _BY_ROW)
        if table in below:
            message = f"rows of tables that inherit from it are not its own: {_some(below[table])}"
            detail = "a query of the table sees them, a view of it does not"
            hint = "capture them as tables of their own, or SELECT … FROM ONLY to compare"
            yield Check(name, CheckState.WARN, message, detail, hint)
        if table in left_out:
            message = f"generated columns are left out: {_some(left_out[table])}"
            detail = "the log has no virtual ones, and stored ones only since Postgres 18"
            yield Check(name, CheckState.WARN, message, detail)


def _fault(name: str, fault: TableFault, *, published: bool) -> Check:
    warned = fault.kind is FaultKind.LATER or (published and fault.kind is FaultKind.REFUSED)
    state = CheckState.WARN if warned else CheckState.FAIL
    return Check(name, state, fault.message, fault.detail, fault.hint)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
