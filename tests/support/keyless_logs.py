"""The topic of a table without a key, as values: what the connector and the reader would write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import UNCHANGED_PLACEHOLDER
from projections.changes.record import Record
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.views import Store
from projections.planning.view_plan import ViewPlan
from tests.fix_log import envelope, numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOPIC = "shop.public.visits"
PLAN = ViewPlan(
    "visits",
    "shop",
    TOPIC,
    TableSchema(
        TableName("public", "visits"),
        (
            Column("code", ColumnKind.INTEGER, "bigint"),
            Column("note", ColumnKind.TEXT, "text"),
        ),
        (),
    ),
    (ROW_ID_COLUMN,),
    frozenset([Store.TABLE]),
)
CODES = range(1, 4)
FORMS = (None, b"null", b'{"code":%d}', b'{"code": %d}', b"code %d", b"\xff%d")
"""Keys of records: none as a rule, one of a nullable index, and what nothing should write."""


def record(op: str, lsn: int, row: Any, key: bytes | None = None, order: int = 1) -> Record:
    return Record(key, envelope(op, lsn, row, order=order), "1", 0, 0)


@st.composite
def logs(draw: Callable[..., Any]) -> list[Record]:
    """Rows that were added, some by one statement; read, truncated, repeated; odd records."""
    found: list[Record] = []
    rows: list[dict[str, Any]] = []
    lsn, steps = 0x1000, draw(st.lists(st.sampled_from("aaaaaacccrtudk"), max_size=11))
    for number, step in enumerate(["a", *steps], 1):
        lsn += 8 * draw(st.integers(1, 3))
        code = draw(st.sampled_from(CODES))
        form = draw(st.sampled_from([*[None] * 6, *FORMS]))
        key = form % code if form is not None and b"%d" in form else form
        row = {"code": code, "note": f"n{number}"}
        if step == "a":
            found.append(record("c", lsn, row, key))
            rows.append(row)
        elif step == "c":  # COPY: several rows at one position
            for order in range(1, draw(st.integers(2, 4))):
                rows.append({"code": code, "note": f"n{number}-{order}"})
                found.append(record("c", lsn, rows[-1], None, order))
        elif step == "r":
            began = draw(st.integers(0x1000, lsn)) | 7
            found += [record("r", began, row, None, n) for n, row in enumerate(rows, 1)]
        elif step == "t":
            found.append(Record(None, envelope("t", lsn, None), "1", 0, 0))
            rows.clear()
        elif step == "k":
            found.append(record("c", lsn, row | {"note": UNCHANGED_PLACEHOLDER}, key))
        else:
            found.append(record(step, lsn, row if step == "u" else None, key))
    return _spoilt(draw, found)


def _spoilt(draw: Callable[..., Any], records: Sequence[Record]) -> list[Record]:
    found = list(records)
    if found:
        for again in draw(st.lists(st.sampled_from(found), max_size=4)):
            found.insert(draw(st.integers(0, len(found))), again)
        for place in draw(st.lists(st.integers(0, len(found) - 1), max_size=2)):
            found.insert(place + 1, found[place]._replace(value=None))
        for place in draw(st.lists(st.integers(0, len(found) - 1), max_size=1)):
            found[place] = found[place]._replace(value=b"{")
    return numbered(found)
