"""Records decoded by columns come to the rows that the reducer makes of them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import UNCHANGED_PLACEHOLDER
from projections.archive.rebuilding.columnar_rows import ColumnarDecoder
from projections.archive.rebuilding.plain_rows import READ, PlainChanges, PlainRowDecoder
from projections.archive.table import SCHEMA
from projections.changes.task_outcome import BlockedKeys
from projections.definition.views import ChangeTime, Store
from projections.planning.view_plan import ViewPlan
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from collections.abc import Sequence


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
NUMBERS = st.decimals(-(10**9), 10**9, allow_nan=False, allow_infinity=False, places=2).map(
    lambda value: format(value, "f")
)
CLOCKS = st.times().map(lambda value: value.isoformat())
MOMENTS = st.datetimes().map(lambda value: value.isoformat())
VALUES: dict[str, tuple[ColumnKind, str, st.SearchStrategy[Any], tuple[Any, ...]]] = {
    "flag": (ColumnKind.BOOLEAN, "boolean", st.booleans(), ("true", 1)),
    "small": (ColumnKind.INTEGER, "smallint", st.integers(-(2**15), 2**15 - 1), (2**15, 1.0)),
    "large": (ColumnKind.INTEGER, "bigint", st.integers(-(2**63), 2**63 - 1), (2**63, "1")),
    "price": (ColumnKind.NUMERIC, "numeric(12,2)", NUMBERS, ("1.234", "1E+2", "NaN", " 1", 1)),
    "any": (ColumnKind.NUMERIC, "numeric", NUMBERS, ("1E+2", "NaN", "-0", "Infinity")),
    "share": (
        ColumnKind.FLOAT,
        "double precision",
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
        ("NaN", "-Infinity", "1e999", "0x1", "1_0"),
    ),
    "text": (ColumnKind.TEXT, "text", TEXTS, (UNCHANGED_PLACEHOLDER, 5, '"\\\n\u2028\x7f/')),
    "code": (ColumnKind.UUID, "uuid", st.uuids().map(str), (UNCHANGED_PLACEHOLDER,)),
    "json": (ColumnKind.JSON, "jsonb", TEXTS.map(lambda text: orjson.dumps([text]).decode()), ()),
    "day": (
        ColumnKind.DATE,
        "date",
        st.dates().map(str),
        ("infinity", "0000-01-01", "2020-02-30", "20200101", "10000-01-01", "0044-03-15 BC"),
    ),
    "clock": (ColumnKind.TIME, "time", CLOCKS, ("24:00:00", "10:00", "10:00:00.1", "10:61:00")),
    "moment": (
        ColumnKind.TIMESTAMP,
        "timestamp",
        MOMENTS,
        ("infinity", "2020-01-01T00:00:00Z", "2020-01-01", "2020-01-01T00:00:00.1234567"),
    ),
    "instant": (
        ColumnKind.TIMESTAMPTZ,
        "timestamptz",
        MOMENTS.map("{}Z".format) | MOMENTS.map("{}+00:00".format),
        ("infinity", "2020-01-01T00:00:00", "2020-01-01T00:00:00+02:00", "2020-01-01T25:00:00Z"),
    ),
    "bytes": (
        ColumnKind.BYTES,
        "bytea",
        st.binary(max_size=9).map(lambda raw: base64.b64encode(raw).decode()),
        ("AA", "*", UNCHANGED_PLACEHOLDER),
    ),
}
KEYS = (
    Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("name", ColumnKind.TEXT, "text", nullable=False),
)
DIGITS = {"price": (12, 2)}
TABLE = TableSchema(
    TableName("public", "things"),
    (
        *KEYS,
        *(
            Column(name, kind, type_name, *DIGITS.get(name, (None, None)))
            for name, (kind, type_name, _, _) in VALUES.items()
        ),
    ),
    ("id", "name"),
)
TOPIC = "shop.public.things"
PLAN = ViewPlan(
    "things",
    "shop",
    TOPIC,
    TABLE,
    ("id", "name"),
    frozenset({Store.TABLE}),
    times=(("changed_at", ChangeTime.COMMIT), ("sent_at", ChangeTime.BROKER)),
)
LEAN = replace(
    PLAN,
    schema=TableSchema(TABLE.table, TABLE.columns[:-3], TABLE.key),
    left_out=TABLE.columns[-3:],
)


def batch(records: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Records as a scan of the archive gives them."""
    rows = []
    for number, record in enumerate(records):
        key = record.get("key") or {name: record["row"][name] for name in TABLE.key}
        rows.append(
            {
                "partition": 0,
                "offset": number,
                "recorded_at": 1_000_000 + number,
                "op": record["op"],
                "epoch": 1,
                "lsn": 100 + number,
                "total_order": 1,
                "committed_at": 2_000_000 + number,
                "key": key if isinstance(key, str) else orjson.dumps(key).decode(),
                "after": None
                if record["op"] == "d"
                else record.get("text") or orjson.dumps(record["row"]).decode(),
                "raw_value": None,
            }
        )
    schema = pa.schema([SCHEMA.field(name) for name in READ])
    return pa.RecordBatch.from_pylist(rows, schema)


def by_reducer(plan: ViewPlan, records: pa.RecordBatch) -> dict[int, Any]:
    """What the reducer makes of each record by itself, by its version; of some nothing."""
    decoder = PlainRowDecoder(plan, TOPIC, {})
    reader = PlainChanges(plan, TOPIC, {}, planned_keys=True)
    made = reader.taken(records, np.arange(records.num_rows), [], decoder.tables)
    found: dict[int, Any] = {}
    for tables, _ in made:
        found |= by_version(*tables)
    return found


def by_version(rows: pa.Table, deletes: pa.Table) -> dict[int, Any]:
    return {row["_version"]: row for row in [*rows.to_pylist(), *deletes.to_pylist()]}


def usual(number: int) -> st.SearchStrategy[dict[str, Any]]:
    values = {name: st.none() | drawn for name, (_, _, drawn, _) in VALUES.items()}
    drawn_row = st.fixed_dictionaries({"id": st.just(number), "name": TEXTS, **values})
    row = drawn_row.map(lambda row: {column.name: row[column.name] for column in TABLE.columns})
    return st.fixed_dictionaries({"op": st.sampled_from("curd"), "row": row})


@st.composite
def odd(draw: st.DrawFn, number: int) -> dict[str, Any]:
    record = draw(usual(number))
    row = record["row"]
    which = draw(st.sampled_from([*VALUES, "gone", "more", "form", "key", "twice", "order"]))
    if which in VALUES:
        row[which] = draw(st.sampled_from([*VALUES[which][3], [1], {"a": 1}]))
    elif which == "gone":
        del row[draw(st.sampled_from(list(VALUES)))]
    elif which == "more":
        row["strange"] = draw(st.sampled_from([None, 1, "x"]))
    elif which == "form":
        record["text"] = orjson.dumps(row, option=orjson.OPT_INDENT_2).decode()
    elif which == "key":
        key = orjson.dumps({name: row[name] for name in TABLE.key}).decode()
        spaced = key.replace(":", ": ", 1)
        record["key"] = draw(st.sampled_from([spaced, '{"id":7}', "7", "null", key + " "]))
    elif which == "twice":
        record["text"] = orjson.dumps(row).decode()[:-1] + ',"flag":true}'
    else:
        record["text"] = orjson.dumps(dict(reversed(row.items()))).decode()
    return record


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data(), plan=st.sampled_from([PLAN, LEAN]))
def test_what_is_decoded_by_columns_is_what_the_reducer_says(
    data: st.DataObject, plan: ViewPlan
) -> None:
    count = data.draw(st.integers(1, 4))
    records = batch([data.draw(usual(n) | odd(n)) for n in range(count)])

    rows, deletes, exact = ColumnarDecoder(plan, TOPIC).decode(records)

    expected = by_reducer(plan, records)
    found = by_version(rows, deletes)
    assert len(found) == exact.sum()
    assert {version: expected.get(version) for version in found} == found


@settings(deadline=None, max_examples=examples(20))
@given(data=st.data(), plan=st.sampled_from([PLAN, LEAN]))
def test_usual_records_are_decoded_by_columns(data: st.DataObject, plan: ViewPlan) -> None:
    records = [data.draw(usual(n)) for n in range(3)]
    plain = 'abc "quoted" \\ \n\t é 漢'  # what is written in one way only
    for number, record in enumerate(records):
        record["row"] |= {"name": plain, "text": plain, "json": f'{{"a": {number}}}'}
        record["row"]["share"] = "1.5e-07"

    _, _, exact = ColumnarDecoder(plan, TOPIC).decode(batch(records))

    assert exact.all()


def test_a_view_of_which_something_waits_is_left_to_the_reducer() -> None:
    held = {PLAN.name: BlockedKeys(frozenset({"a"}))}

    assert ColumnarDecoder.of(PLAN, TOPIC, held) is None
    assert ColumnarDecoder.of(PLAN, TOPIC, {PLAN.name: BlockedKeys()}) is not None
