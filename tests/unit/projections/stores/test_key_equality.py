"""Rows whose keys are floats or numerics are found by their keys: NaN, zeros and all digits."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.columns import DELETED_FIELD
from projections.definition.views import Store
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.stores.delta.derived_table import DerivedTable, settled
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.table_sink import TableSink
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from pathlib import Path

EPOCH = 1 << 56
FLOATS = st.sampled_from(["NaN", "-0.0", "0.0", "1.5", "inf", "-inf"])
"""Texts: each draw is an object of its own, as values that are decoded are."""


def plan_of(kind: ColumnKind, type_name: str, *digits: int) -> ViewPlan:
    columns = (
        Column("id", kind, type_name, *digits, nullable=False),
        Column("note", ColumnKind.TEXT, "text"),
    )
    schema = TableSchema(TableName("public", "things"), columns, ("id",))
    to = frozenset([Store.TABLE])
    return ViewPlan("things", "shop", "shop.public.things", schema, ("id",), to)


FLOAT = plan_of(ColumnKind.FLOAT, "double precision")
NUMERIC = plan_of(ColumnKind.NUMERIC, "numeric")


def change(key: Any, version: int, note: str | None) -> RowChange:
    row = None if note is None else {"id": key, "note": note}
    return RowChange((key,), EPOCH | 8 * version, row, 1_000_000 * version)


def key_of(number: float) -> object:
    """One value for all that Postgres and Spark take for one key."""
    return "NaN" if math.isnan(number) else number + 0.0


def found(root: Path, name: str, *keys: str) -> dict[Any, Any]:
    rows = DeltaTable(str(root / name)).to_pyarrow_table().to_pylist()
    by_key = {
        tuple(key_of(row[key]) if isinstance(row[key], float) else row[key] for key in keys): row
        for row in rows
    }
    assert len(rows) == len(by_key)
    return by_key


@settings(max_examples=examples(60), deadline=None)
@given(
    batches=st.lists(
        st.dictionaries(
            st.tuples(st.none() | FLOATS.map(float).map(key_of), st.sampled_from("ab")),
            st.none() | st.integers(0, 9),
            max_size=5,
        ),
        min_size=2,
        max_size=4,
    )
)
def test_rows_of_a_derived_view_are_found_by_floats(
    batches: list[dict[Any, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, expected = tmp_path_factory.mktemp("tables"), dict[Any, Any]()
    table = DerivedTable(root, "v", ("score", "group"))
    schema = pa.schema(
        [
            ("score", pa.float64()),
            ("group", pa.string()),
            ("count", pa.int64()),
            (DELETED_FIELD, pa.bool_()),
        ]
    )
    for number, batch in enumerate(batches):
        rows = [
            (None if score is None else float(score), group, count, count is None)
            for (score, group), count in batch.items()
        ]
        named = [dict(zip(schema.names, row, strict=True)) for row in rows]
        table.write(pa.Table.from_pylist(named, schema), number + 1, replaces_all=number == 0)
        expected = {key: n for key, n in (expected | batch).items() if n is not None}

        stored = {key: row["count"] for key, row in found(root, "v", "score", "group").items()}
        assert expected == stored


def test_what_is_deleted_unless_its_key_has_a_row_is_not_if_that_key_is_not_a_number() -> None:
    rows = pa.table(
        {"score": [math.nan, float("nan"), 2.0], DELETED_FIELD: [None, False, None]},
    )

    kept = settled(rows, ["score"]).to_pydict()

    assert [2.0, "NaN"] == [key_of(score) for score in kept["score"]]
    assert [True, False] == kept[DELETED_FIELD]


@settings(max_examples=examples(60), deadline=None)
@given(
    changes=st.lists(st.tuples(FLOATS, st.integers(1, 9), st.booleans()), max_size=12),
    data=st.data(),
)
def test_rows_of_a_mirror_are_found_by_floats_in_any_order(
    changes: list[tuple[str, int, bool]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("tables")
    sink = TableSink(root)
    sink.prepare(FLOAT)
    newest: dict[object, tuple[int, str | None]] = {}
    while changes:
        many = data.draw(st.integers(1, len(changes)))
        batch: dict[object, RowChange] = {}  # the reducer leaves the newest change of each key
        for text, version, live in changes[:many]:
            key, note = key_of(float(text)), f"{version}" if live else None
            if key not in batch or EPOCH | 8 * version > batch[key].version:
                batch[key] = change(float(text), version, note)
            if version > newest.get(key, (0, None))[0]:
                newest[key] = version, note
        sink.apply(FLOAT, list(batch.values()))
        changes = changes[many:]

    expected = {(key,): note for key, (_, note) in newest.items() if note is not None}
    assert expected == {key: row["note"] for key, row in found(root, "things", "id").items()}
    probes = [change(float(str(key)), 0, None) for key in newest]
    assert [EPOCH | 8 * version for version, _ in newest.values()] == sink.versions(FLOAT, probes)


@pytest.mark.parametrize(
    "changes",
    [
        [("1.0", 2, None), ("1.00", 2, "b")],  # an update of the key
        [("1.0", 2, None), ("1.00", 3, "b")],
        [("1.00", 3, "b"), ("1.0", 2, None)],
    ],
)
def test_each_form_of_a_numeric_that_is_stored_as_text_is_a_key(
    tmp_path: Path, changes: list[tuple[str, int, str | None]]
) -> None:
    """Postgres has one row of both; the log deletes that of one form and inserts the other."""
    sink = TableSink(tmp_path)
    sink.prepare(NUMERIC)
    sink.apply(NUMERIC, [change(Decimal("1.0"), 1, "a")])

    sink.apply(NUMERIC, [change(Decimal(key), version, note) for key, version, note in changes])

    assert [{"id": "1.00", "note": "b"}] == list(sink.documents(NUMERIC))
    probes = [change(Decimal(key), 0, None) for key in ("1.00", "1.0")]
    wanted = {key: EPOCH | 8 * version for key, version, _ in changes}
    assert [wanted["1.00"], wanted["1.0"]] == sink.versions(NUMERIC, probes)
    stored = sink.stored(NUMERIC, [probe.key for probe in probes])
    assert [1, 0] == [len(each.documents) for each in stored]


@pytest.mark.parametrize("other", ["1.5", "NaN"])
def test_states_of_a_history_are_found_by_floats(tmp_path: Path, other: str) -> None:
    plan, sink = replace(FLOAT, history=HistoryPlan(("note",))), HistorySink(tmp_path)
    sink.prepare(plan)
    sink.apply(plan, [change(float("nan"), 1, "a"), change(1.5, 1, "a")])

    sink.apply(plan, [change(float("nan"), 2, "b"), change(1.5, 2, "b")])
    sink.apply(plan, [change(float(other), 3, None)])
    sink.apply(plan, [change(float("nan"), 2, "b")])

    now = [key_of(float(row["id"])) for row in sink.documents(plan)]
    assert [key_of(float(each)) for each in ("1.5", "NaN") if each != other] == now
    states = DeltaTable(str(tmp_path / "things")).to_pyarrow_table()
    assert 4 == states.num_rows


@pytest.mark.parametrize("order", [1, -1], ids=["delete first", "insert first"])
def test_a_row_whose_key_becomes_negative_zero_stays(tmp_path: Path, order: int) -> None:
    sink = TableSink(tmp_path)
    sink.prepare(FLOAT)
    sink.apply(FLOAT, [change(0.0, 1, "a"), change(1.5, 1, "other")])

    sink.apply(FLOAT, [change(0.0, 2, None), change(-0.0, 2, "b")][::order])

    assert {0.0: "b", 1.5: "other"} == {row["id"]: row["note"] for row in sink.documents(FLOAT)}
