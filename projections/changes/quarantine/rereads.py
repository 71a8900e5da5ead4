"""Requests to read rows again that lack a value, or may have lost a change.

An unreadable record may have been any change of its key. If its retry fails, the row is read again,
and its present state also replaces the record.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import orjson

from cdc.errors import ValueDecodeError
from cdc.snapshot import reads
from cdc.snapshot.reads import SnapshotRequest
from cdc.values import decode
from projections.changes.quarantine.table import UNRESOLVED, translated_errors

if TYPE_CHECKING:
    from cdc.table import Column, TableSchema
    from projections.changes.quarantine.table import Connection
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan

KEYS_MAX: Final = 1_000
"""Most keys of one request; others follow in the next round."""

# A record that has arrived since may contain the row, so a retry comes first.
_LACKING: Final = """
SELECT DISTINCT view, key FROM headwater.quarantine
 WHERE source = %s AND state = 'waiting' AND key LIKE '{%%' AND view = ANY(%s)
   AND (code = %s OR version IS NULL AND tried_at IS NOT NULL)
   AND last_seen_at < clock_timestamp() - interval '2 s'
   AND (read_asked_at IS NULL OR read_asked_at < clock_timestamp() - interval '5 min')
 LIMIT %s
"""
_RECORD_REQUEST: Final = """
UPDATE headwater.quarantine SET read_asked_at = clock_timestamp()
 WHERE source = %s AND view = %s AND key = ANY(%s) AND state = 'waiting'
   AND (code = %s OR version IS NULL AND tried_at IS NOT NULL)
"""
_EPOCH: Final = "SELECT epoch FROM headwater.captures WHERE source = %s"


def ask(connection: Connection, spec: JobSpec) -> None:
    """Requests reads of rows by key.

    If a snapshot of the whole table is running, its rows are awaited first.
    """
    with translated_errors():
        plans = {plan.name: plan for plan in spec.plans if _may_be_read(plan)}
        parameters = (spec.config.source, sorted(plans), UNRESOLVED, KEYS_MAX)
        lacking = connection.execute(_LACKING, parameters).fetchall()
        if not lacking:
            return
        epoch = connection.execute(_EPOCH, (spec.config.source,)).fetchone()
        if epoch is None:
            return
        pending = reads.open_reads(connection, spec.config.source, epoch[0])
        whole = {read.table for read in pending if read.whole}
        keys: dict[str, list[str]] = defaultdict(list)
        for view, key in lacking:
            if plans[view].schema.table not in whole:
                keys[view].append(key)
        for view, of_view in keys.items():
            wanted = _keys(plans[view], of_view)
            if wanted:
                wish = SnapshotRequest(plans[view].schema.table, wanted)
                reads.ask(connection, spec.config.source, epoch[0], wish, len(wanted))
            connection.execute(_RECORD_REQUEST, (spec.config.source, view, of_view, UNRESOLVED))


def _may_be_read(plan: ViewPlan) -> bool:
    # rows without a key cannot be requested, and events are read only by the event store
    return plan.events is None and not plan.append_only


def _keys(plan: ViewPlan, texts: list[str]) -> tuple[reads.Key, ...]:
    keys = (key_values(plan.schema, text) for text in texts)
    return tuple(sorted(key for key in keys if key is not None))


def key_values(schema: TableSchema, text: str) -> reads.Key | None:
    """Returns the values of a key as texts that Postgres parses, in the key's order.

    Args:
        schema: The table.
        text: The key as records have it, a JSON object.

    Returns:
        The values; None if it is not a key of the table, because a foreign producer sent it.
    """
    fields = list(orjson.loads(text).values())
    columns = [schema.by_name[name] for name in schema.key]
    if len(fields) != len(columns):
        return None
    try:
        return tuple(map(_text, columns, fields))
    except ValueDecodeError:
        return None


def _text(column: Column, value: object) -> str:
    decoded = decode(column, value)
    if isinstance(decoded, bytes):
        return "\\x" + decoded.hex()
    return ("false", "true")[value] if isinstance(value, bool) else str(value)
