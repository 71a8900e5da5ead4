"""Reads that are asked for because a change lacks a value that no row has."""

from __future__ import annotations

from base64 import b64decode
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.snapshot import reads
from cdc.snapshot.reads import Wish
from cdc.table import ColumnKind
from projections.quarantine.ledger import UNRESOLVED, told_apart

if TYPE_CHECKING:
    from cdc.table import TableSchema
    from projections.plan import ViewPlan
    from projections.quarantine.ledger import Connection
    from projections.spec import JobSpec

KEYS_MAX: Final = 1_000
"""Keys of one read; more are asked for in the next round."""

# What has arrived with it may have its row already: it is given a moment to be tried again.
_LACKING: Final = """
SELECT DISTINCT view, key FROM headwater.quarantine
 WHERE source = %s AND state = 'waiting' AND code = %s
   AND last_seen_at < clock_timestamp() - interval '2 s'
   AND (read_asked_at IS NULL OR read_asked_at < clock_timestamp() - interval '5 min')
 LIMIT %s
"""
_ASKED: Final = """
UPDATE headwater.quarantine SET read_asked_at = clock_timestamp()
 WHERE source = %s AND view = %s AND key = ANY(%s) AND code = %s
"""
_EPOCH: Final = "SELECT epoch FROM headwater.captures WHERE source = %s"


def ask(connection: Connection, spec: JobSpec) -> None:
    """Asks for reads of rows that lack a value, by key.

    A read of the whole table that is under way is waited for first: it may bring them.
    """
    with told_apart():
        lacking = connection.execute(_LACKING, (spec.source, UNRESOLVED, KEYS_MAX)).fetchall()
        if not lacking:
            return
        epoch = connection.execute(_EPOCH, (spec.source,)).fetchone()
        if epoch is None:
            return
        pending = reads.open_reads(connection, spec.source, epoch[0])
        whole = {read.table for read in pending if read.whole}
        plans = {plan.name: plan for plan in spec.plans}
        keys: dict[str, list[str]] = defaultdict(list)
        for view, key in lacking:
            if view in plans and plans[view].schema.table not in whole:
                keys[view].append(key)
        for view, of_view in keys.items():
            wish = Wish(plans[view].schema.table, _keys(plans[view], of_view))
            reads.ask(connection, spec.source, epoch[0], wish, len(of_view))
            connection.execute(_ASKED, (spec.source, view, of_view, UNRESOLVED))


def _keys(plan: ViewPlan, texts: list[str]) -> tuple[reads.Key, ...]:
    return tuple(sorted(key_values(plan.schema, text) for text in texts))


def key_values(schema: TableSchema, text: str) -> tuple[str, ...]:
    """Returns the values of a key as the text that Postgres reads, in the key's order.

    Args:
        schema: The table.
        text: The key as records have it, a JSON object.
    """
    fields: dict[str, Any] = orjson.loads(text)
    return tuple(_value(schema, name, fields[name]) for name in schema.key)


def _value(schema: TableSchema, name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if schema.by_name[name].kind is ColumnKind.BYTES:
        return "\\x" + b64decode(str(value)).hex()
    return str(value)
