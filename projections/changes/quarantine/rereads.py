"""Reads that the job requests: of rows that lack a value, or may have lost a change.

An unreadable record may have been any change of its key. If its retry fails, the row is read: its
present state then replaces the record too.
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
"""Keys of one read; more are asked for in the next round."""

# What has arrived with it may have its row already: it is given a moment to be tried again.
_LACKING: Final = """
SELECT DISTINCT view, key FROM headwater.quarantine
 WHERE source = %s AND state = 'waiting' AND key LIKE '{%%' AND view = ANY(%s)
   AND (code = %s OR version IS NULL AND tried_at IS NOT NULL)
   AND last_seen_at < clock_timestamp() - interval '2 s'
   AND (read_asked_at IS NULL OR read_asked_at < clock_timestamp() - interval '5 min')
 LIMIT %s
"""
_ASKED: Final = """
UPDATE headwater.quarantine SET read_asked_at = clock_timestamp()
 WHERE source = %s AND view = %s AND key = ANY(%s) AND state = 'waiting'
   AND (code = %s OR version IS NULL AND tried_at IS NOT NULL)
"""
_EPOCH: Final = "SELECT epoch FROM headwater.captures WHERE source = %s"


def ask(connection: Connection, spec: JobSpec) -> None:
    """Asks for reads of rows, by key.

    A read of the whole table that is under way is waited for first: it may bring them.
    """
    with translated_errors():
        plans = {plan.name: plan for plan in spec.plans if _may_be_read(plan)}
        asked = (spec.config.source, sorted(plans), UNRESOLVED, KEYS_MAX)
        lacking = connection.execute(_LACKING, asked).fetchall()
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
            connection.execute(_ASKED, (spec.config.source, view, of_view, UNRESOLVED))


def _may_be_read(plan: ViewPlan) -> bool:
    # rows of a table without a key cannot be named; events are read by no one but their store
    return plan.events is None and not plan.append_only


def _keys(plan: ViewPlan, texts: list[str]) -> tuple[reads.Key, ...]:
    found = (key_values(plan.schema, text) for text in texts)
    return tuple(sorted(key for key in found if key is not None))


def key_values(schema: TableSchema, text: str) -> reads.Key | None:
    """Returns the values of a key as the text that Postgres reads, in the key's order.

    Args:
        schema: The table.
        text: The key as records have it, a JSON object.

    Returns:
        None if it is no key of that table: anybody may send a record.
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
