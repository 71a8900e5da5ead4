"""Suspect keys are all that differ; comparing their rows alone changes no result."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.stores.delta import suspect_keys, table_diff
from projections.stores.delta.row_hashes import RowHashes
from projections.stores.delta.suspect_keys import SuspectKeys
from projections.stores.delta.table_diff import ComparedVersion, TableDifference, compare_sides
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LINES = pa.list_(pa.struct([("sku", pa.string()), ("price", pa.float64())]))
FIELDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "id": (pa.int64(), [None, 0, -1, -2, 2**62]),
    "part": (pa.string(), [None, "", "a", "\\N"]),
    "rate": (pa.float64(), [None, 0.0, -0.0, 1.5, math.nan, -math.inf]),
    "total": (pa.decimal128(12, 2), [None, Decimal("0.00"), Decimal("-1.10"), Decimal("1.10")]),
    "wide": (pa.decimal128(38, 0), [None, Decimal(2**64), Decimal(2**65), Decimal(-1)]),
    "paid": (pa.bool_(), [None, True, False]),
    "day": (pa.date32(), [None, date(1600, 2, 29), date(1970, 1, 1)]),
    "at": (pa.timestamp("us", "UTC"), [None, datetime(1, 1, 1, tzinfo=UTC)]),
    "data": (pa.binary(), [None, b"", b"\x00"]),
    "doc": (pa.string(), [None, '{"a":1}', '{"a": 1}']),
    "lines": (LINES, [None, [], [None], [{"sku": "a", "price": math.nan}]]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in FIELDS.items()])
KEYS = (("id",), ("id", "part"), ("rate", "total"), ("wide", "at", "paid"), ())
ROW = st.tuples(*(st.sampled_from(values) for _, values in FIELDS.values()))
MANY = 300


def table_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    arrays = [pa.array(each, kind.type) for each, kind in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def in_memory(before: pa.Table, after: pa.Table, keys: tuple[str, ...]) -> TableDifference:
    """Compares every row of two tables at once: what must come out."""
    columns = [name for name in before.column_names if name not in keys]
    result = TableDifference(keys)
    comparison = table_diff._Comparison(result, tuple(columns), 10)
    for table, add in ((before, comparison.before), (after, comparison.after)):
        for batch in table.to_batches():
            taken = [table_diff._comparable(batch.column(name)) for name in [*keys, *columns]]
            for values in zip(*taken, strict=True):
                many = len(keys) or len(values)
                add(values[:many], values[many:])
    comparison.end()
    return result


def counts(of: TableDifference) -> tuple[Any, ...]:
    return of.appeared, of.gone, of.changed, dict(of.by_column)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(ROW, max_size=6),
    st.lists(ROW, max_size=4),
    st.lists(ROW, max_size=4),
    st.sampled_from(KEYS),
    st.sampled_from([1, 3, 1000]),
    st.booleans(),
)
def test_the_result_is_that_of_comparing_every_row(  # noqa: PLR0913, PLR0917
    tmp_path_factory: pytest.TempPathFactory,
    both: list[Any],
    gone: list[Any],
    new: list[Any],
    keys: tuple[str, ...],
    at_once: int,
    plain: bool,
) -> None:
    root = tmp_path_factory.mktemp("tables")
    # where rows of one key are paired depends on their order, so that is the same on both sides
    before, after = table_of([*both, *gone]), table_of([*both, *new])
    for name, rows in (("before", before), ("after", after)):
        write_deltalake(str(root / name), rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_diff, "ROWS_AT_ONCE", at_once)
        patch.setattr(table_diff, "plain", lambda _: plain)
        sides = ComparedVersion(root / "before", 0), ComparedVersion(root / "after", 0)
        result = compare_sides(*sides, keys)

    expected = in_memory(before, after, keys)
    assert counts(expected) == counts(result)
    if at_once == 1000:
        assert expected == result  # and its examples, in the order of the rows


def test_a_large_table_is_read_twice_and_rows_in_many_parts_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("id", pa.int32()), ("total", pa.decimal128(9, 2))])
    wider = pa.schema([("id", pa.int64()), ("total", pa.decimal128(12, 2))])
    rows = [(n, Decimal(n)) for n in range(MANY)]
    other = [(n, Decimal(n + n % 2)) for n in range(5, MANY + 7)]
    write_deltalake(str(tmp_path / "before"), table_of(rows, schema))
    write_deltalake(str(tmp_path / "after"), table_of(other[::-1], wider))
    monkeypatch.setattr(suspect_keys, "_BUFFERED_ROWS", 50)
    monkeypatch.setattr(table_diff, "ROWS_AT_ONCE", 20)
    read: Counter[str] = Counter()
    batches = table_diff._Version._batches

    def counted(own: Any, what: Any) -> Any:
        read[own._side.path.name] += 1
        return batches(own, what)

    monkeypatch.setattr(table_diff._Version, "_batches", counted)

    sides = ComparedVersion(tmp_path / "before", 0), ComparedVersion(tmp_path / "after", 0)
    result = compare_sides(*sides, ("id",))

    assert (7, 5, (MANY - 5) // 2 + 1) == (result.appeared, result.gone, result.changed)
    assert {"before": 2, "after": 2} == read


def test_equal_tables_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = tuple(values[-1] for _, values in FIELDS.values())
    for name in ("before", "after"):
        write_deltalake(str(tmp_path / name), table_of([row]))
    monkeypatch.setattr(table_diff._Version, "suspects", None)  # no row is read a second time

    sides = ComparedVersion(tmp_path / "before", 0), ComparedVersion(tmp_path / "after", 0)
    assert compare_sides(*sides, ("id",)).same
    assert compare_sides(*sides).same


def test_a_table_without_rows_is_compared(tmp_path: Path) -> None:
    row = tuple(values[0] for _, values in FIELDS.values())
    for name, rows in (("before", [row]), ("after", []), ("empty", [])):
        write_deltalake(str(tmp_path / name), table_of(rows))
    before, after, empty = (
        ComparedVersion(tmp_path / name, 0) for name in ("before", "after", "empty")
    )

    for keys in KEYS:
        assert (0, 1, 0, {}) == counts(compare_sides(before, after, keys))
        assert (1, 0, 0, {}) == counts(compare_sides(after, before, keys))
        assert compare_sides(after, empty, keys).same


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.booleans()), max_size=40))
def test_a_key_is_suspect_where_its_rows_are_not_the_same_as_often(
    lines: list[tuple[int, int, bool]],
) -> None:
    sides = [
        np.array([(key << 55, row + key * 4) for key, row, of in lines if of is side], np.uint64)
        for side in (False, True)
    ]
    parts = [
        [(side[:1, 0], side[:1, 1]), (side[1:, 0], side[1:, 1])] if len(side) else []
        for side in sides
    ]
    suspects = SuspectKeys(*parts)

    for key in range(21):
        before, after = (
            Counter(row for each, row, of in lines if each == key and of is side)
            for side in (False, True)
        )
        assert [before != after] == suspects.among(np.array([key << 55], np.uint64)).tolist()


def test_equal_values_have_equal_hashes_and_others_differ() -> None:
    hashes = RowHashes()
    for name, (kind, values) in FIELDS.items():
        twice = pa.record_batch({name: pa.array([*values, *values], kind)})
        result = hashes.of(twice.slice(1), [name]).tolist()
        assert result[: len(values) - 1] == result[len(values) :]
        equal = 1 if name == "rate" else 0  # -0.0 and 0.0
        assert len(values) - equal == len(set(result))
    beneath = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x00"), pa.py_buffer(np.array([1, 2]))]
    )
    assert 1 == len(set(hashes.of(pa.record_batch({"n": beneath}), ["n"]).tolist()))


def test_the_order_of_columns_counts() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": [2, 1]})
    one, other = RowHashes().of(batch, ["a", "b"]).tolist()

    assert one != other
