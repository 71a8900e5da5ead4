"""The topics of an event store as values: what the connector and the reader would write.

An event is added once. Compaction moves it to the table of archived events, and may delete it there
for good. Snapshots read it in either table, under the position at which they began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableSchema
from projections.changes.record import Record
from projections.definition.event_rows import ENVELOPE, KEY, EventForm
from projections.definition.views import ARCHIVED_EVENTS, EVENTS, Store
from projections.planning.view_plan import EventsPlan, ViewPlan
from tests.fix_archive import archived
from tests.fix_log import envelope
from tests.support.order_events import types

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LIVE, ARCHIVED = (table.topic("shop") for table in (EVENTS, ARCHIVED_EVENTS))
_COLUMNS: Final = (
    *ENVELOPE,
    Column("schema_version", ColumnKind.INTEGER, "smallint", nullable=False),
    Column("data", ColumnKind.JSON, "json", nullable=False),
)
_FORM: Final = EventForm(types, ["order.placed", "order.paid"])
PLAN = ViewPlan(
    "order_events",
    "shop",
    LIVE,
    TableSchema(EVENTS, _FORM.columns, (KEY,)),
    (KEY,),
    frozenset([Store.TABLE]),
    EventsPlan(
        _FORM,
        {
            topic: TableSchema(table, _COLUMNS, (KEY,))
            for topic, table in ((LIVE, EVENTS), (ARCHIVED, ARCHIVED_EVENTS))
        },
    ),
)
KINDS: Final = ("order.placed", "order.paid", "order.noted")
_AT: Final = "2026-03-01T12:30:00.000001Z"


def event(number: int, kind: str, data: object = None) -> dict[str, Any]:
    """The row of an event; of a placed order unless `data` is given."""
    row = dict.fromkeys(column.name for column in _COLUMNS)
    given = {"order": f"o-{number}", "total": f"{number}.50"} if data is None else data
    return row | {
        "global_position": number,
        "tenant": "t",
        "stream": f"order-{number}",
        "stream_position": 1,
        "type": kind,
        "event_id": str(UUID(int=number)),
        "occurred_at": _AT,
        "recorded_at": _AT,
        "schema_version": 1,
        "data": orjson.dumps(given).decode(),
    }


def record(op: str, lsn: int, row: dict[str, Any]) -> Record:
    """A record of a row, or of its delete."""
    fields = orjson.loads(envelope(op, lsn, None if op == "d" else row))
    fields["before"] = row if op == "d" else None
    return Record(orjson.dumps({KEY: row[KEY]}), orjson.dumps(fields), "1", 0, 0)


@st.composite
def logs(draw: Callable[..., Any], *, spoilt: bool = True) -> dict[str, list[Record]]:
    """Records of both topics; some repeated, some that cannot be read unless none are spoilt."""
    found: dict[str, list[Record]] = {LIVE: [], ARCHIVED: []}
    where: dict[int, str] = {}
    rows: dict[int, dict[str, Any]] = {}
    lsn = 0x1000
    for _ in range(draw(st.integers(1, 24))):
        lsn += 8 * draw(st.integers(1, 3))
        number, step = draw(st.integers(1, 6)), draw(st.integers(0, 6))
        if number not in where:
            kind = draw(st.sampled_from(KINDS))
            data = draw(st.sampled_from([None, None, None, None, {"strange": 1}]))
            rows[number], where[number] = event(number, kind, data), LIVE
            found[LIVE].append(record("c", lsn, rows[number]))
        elif step in (0, 1) and where[number] == LIVE:
            found[LIVE].append(record("d", lsn, rows[number] | {"type": None}))
            found[ARCHIVED].append(record("c", lsn + 1, rows[number]))
            where[number] = ARCHIVED
        elif step == 2 and where[number] == ARCHIVED:
            found[ARCHIVED].append(record("d", lsn, rows[number]))
            where[number] = ""
        elif step == 3 and where[number] == LIVE:
            found[LIVE].append(record("u", lsn, rows[number]))
        elif where[number]:
            began = draw(st.integers(0x1000, lsn))
            found[where[number]].append(record("r", began, rows[number]))
    if not spoilt:
        return {topic: _numbered(records) for topic, records in found.items()}
    return {topic: _spoilt(draw, records) for topic, records in found.items()}


def _spoilt(draw: Callable[..., Any], records: Sequence[Record]) -> list[Record]:
    found = list(records)
    if found:
        for again in draw(st.lists(st.sampled_from(found), max_size=3)):
            found.insert(draw(st.integers(0, len(found))), again)
        for place in draw(st.lists(st.integers(0, len(found) - 1), max_size=2)):
            found.insert(place + 1, found[place]._replace(value=None))
        for place in draw(st.lists(st.integers(0, len(found) - 1), max_size=1)):
            found[place] = found[place]._replace(value=b"{")
    return _numbered(found)


def _numbered(records: Sequence[Record]) -> list[Record]:
    return [each._replace(offset=offset) for offset, each in enumerate(records)]


def placed(folder: Path, count: int) -> Path:
    """An archive of events; every second one was archived, and every sixth of these deleted."""
    log: dict[str, list[Record]] = {LIVE: [], ARCHIVED: []}
    for number in range(1, count + 1):
        row, lsn = event(number, "order.placed"), 0x1000 + 64 * number
        log[LIVE].append(record("c", lsn, row))
        if number % 2 == 0:
            log[LIVE].append(record("d", lsn + 8, row))
            log[ARCHIVED].append(record("c", lsn + 16, row))
        if number % 12 == 0:
            log[ARCHIVED].append(record("d", lsn + 24, row))
    for topic, records in log.items():
        numbered = [each._replace(offset=offset) for offset, each in enumerate(records)]
        for start in range(0, len(numbered), 7):
            archived(folder, topic, numbered[start : start + 7])
    return folder
