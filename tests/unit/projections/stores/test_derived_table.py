"""The table of a view made from others has what the last of each key was, NULL in keys included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.definition.columns import DELETED_FIELD
from projections.stores.delta.derived_table import DerivedTable, settled
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

KEYS = ("group", "person", "since")
SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("person", pa.int64()),
        ("since", pa.timestamp("us", "UTC")),
        ("count", pa.int64()),
        (DELETED_FIELD, pa.bool_()),
    ]
)
DAY = datetime(2026, 11, 21, tzinfo=UTC)
keys = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0, 1, None]),
    st.sampled_from([DAY, DAY + timedelta(minutes=1), None]),
)
batches = st.dictionaries(keys, st.none() | st.integers(0, 9), max_size=6)


@settings(max_examples=examples(40), deadline=None)
@given(first=batches, following=st.lists(batches, max_size=4))
def test_rows_are_found_by_all_columns_of_their_key(
    first: dict[Any, Any],
    following: list[dict[Any, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("tables")
    table, expected = DerivedTable(root, "v", KEYS), dict[Any, Any]()
    for number, batch in enumerate([first, *following]):
        rows = [(*key, count, count is None) for key, count in batch.items()]
        named = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
        table.write(pa.Table.from_pylist(named, SCHEMA), number + 1, replaces_all=number == 0)
        expected = {k: n for k, n in (expected | batch).items() if n is not None}

        found = DeltaTable(str(root / "v")).to_pyarrow_table().to_pylist()
        assert expected == {tuple(row[name] for name in KEYS): row["count"] for row in found}
        assert len(expected) == len(found)


@settings(max_examples=examples(100), deadline=None)
@given(rows=batches, unless_there=st.lists(keys, unique=True, max_size=6))
def test_what_is_deleted_unless_its_key_has_a_row_is_so_only_without_one(
    rows: dict[Any, Any], unless_there: list[Any]
) -> None:
    told = [(*key, count, count is None) for key, count in rows.items()]
    asked = [(*key, None, None) for key in unless_there]
    named = [dict(zip(SCHEMA.names, row, strict=True)) for row in (*asked, *told)]

    found = settled(pa.Table.from_pylist(named, SCHEMA), KEYS)

    assert SCHEMA == found.schema
    kept = [tuple(row[name] for name in SCHEMA.names) for row in found.to_pylist()]
    lacking = [(*key, None, True) for key in unless_there if key not in rows]
    assert [*lacking, *told] == kept


def test_files_that_have_none_of_the_keys_are_not_read(tmp_path: Path) -> None:
    table = DerivedTable(tmp_path, "v", ("person", "group"))
    for number in range(4):
        named = [
            {"group": "a", "person": 100 * number + n, "count": n, DELETED_FIELD: False}
            for n in range(10)
        ]
        table.write(pa.Table.from_pylist(named, SCHEMA), number + 1, replaces_all=number == 0)

    known = DeltaTable(str(tmp_path / "v"))
    assert 4 == len(known.file_uris())
    written = known.history(1)[0]["operationMetrics"]
    assert (0, 3) == (
        written["num_target_files_scanned"],
        written["num_target_files_skipped_during_scan"],
    )
