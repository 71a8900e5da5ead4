"""Keys of a view that wait in quarantine: what is wrong with them has a name already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
import psycopg

from cdc.errors import CdcError
from cdc.values import decode, encoder
from projections.changes.documents import key_text

if TYPE_CHECKING:
    from projections.definition.views import Store
    from projections.planning.view_plan import ViewPlan

_WAITING: Final = """
SELECT DISTINCT key FROM headwater.quarantine
 WHERE view = %s AND store = %s AND state <> 'superseded'
"""


def keys(connection: psycopg.Connection[Any], plan: ViewPlan, store: Store) -> frozenset[str]:
    """Returns the texts of a view's keys of which a record waits, or was dropped, in a store.

    Args:
        connection: To the source, in autocommit.
        plan: The view; its rows have keys.
        store: The store.
    """
    try:
        rows = connection.execute(_WAITING, (plan.name, str(store))).fetchall()
    except psycopg.errors.UndefinedTable:
        return frozenset()  # nothing was ever captured here
    found = (_named(plan, key) for (key,) in rows)
    return frozenset(key for key in found if key is not None)


def _named(plan: ViewPlan, record_key: str) -> str | None:
    columns = [plan.schema.by_name[name] for name in plan.keys]
    try:
        fields = orjson.loads(record_key)
        values = fields if isinstance(fields, dict) else {}
        if len(columns) != len(values):
            return None  # of another shape of the table, or no key at all
        pairs = zip(columns, values.values(), strict=True)
        row = {column.name: decode(column, value) for column, value in pairs}
        schema = type(plan.schema)(plan.schema.table, tuple(columns))
        return key_text(list(encoder(schema)(row).values()))
    except (orjson.JSONDecodeError, CdcError):
        return None
