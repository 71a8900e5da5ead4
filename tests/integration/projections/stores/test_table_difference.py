"""Two versions of a table are compared, whatever was written in between; a dict is the oracle."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.errors import SinkUnavailableError
from projections.stores.delta import table_diff
from projections.stores.delta.table_diff import ChangedRow, TableDifference, compare
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

LINES = pa.list_(pa.struct([("sku", pa.string()), ("price", pa.float64())]))
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("total", pa.decimal128(12, 2)),
        ("rate", pa.float64()),
        ("lines", LINES),
        ("_version", pa.int64()),
    ]
)
KEYS = ("id", "part")
VALUES = st.tuples(
    st.one_of(st.none(), st.decimals(-99, 99, places=2)),
    st.one_of(st.none(), st.sampled_from([0.0, 1.5, float("nan"), float("inf")])),
    st.one_of(
        st.none(),
        st.lists(
            st.builds(
                lambda sku, price: {"sku": sku, "price": price},
                st.sampled_from("ab"),
                st.sampled_from([1.0, float("nan")]),
            ),
            max_size=2,
        ),
    ),
)
ROWS = st.dictionaries(
    st.tuples(st.integers(0, 6), st.sampled_from(["x", "y", None])), VALUES, max_size=8
)


class Table:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "things"
        self.rows: dict[Any, Any] = {}
        DeltaTable.create(str(self.path), SCHEMA)

    @property
    def version(self) -> int:
        return DeltaTable(str(self.path)).version()

    def become(self, rows: dict[Any, Any]) -> None:
        """Writes what is new, and takes out what is not there any more, as a sink does."""
        gone = [key for key in self.rows if key not in rows]
        new = {key: row for key, row in rows.items() if repr(self.rows.get(key)) != repr(row)}
        table = DeltaTable(str(self.path))
        for number, part in [*gone, *new]:
            named = "part IS NULL" if part is None else f"part = '{part}'"
            table.delete(f"id = {number} AND {named}")
        if new:
            write_deltalake(str(self.path), as_table(new, table.version()), mode="append")
        self.rows = rows

    def compact(self) -> None:
        DeltaTable(str(self.path)).optimize.compact()


def as_table(rows: dict[Any, Any], version: int) -> pa.Table:
    made = [
        {"id": k[0], "part": k[1], "total": v[0], "rate": v[1], "lines": v[2], "_version": version}
        for k, v in rows.items()
    ]
    return pa.Table.from_pylist(made, SCHEMA)


def expected(before: dict[Any, Any], after: dict[Any, Any]) -> dict[str, Any]:
    both = before.keys() & after.keys()
    columns = Counter(
        name
        for key in both
        for place, name in enumerate(("total", "rate", "lines"))
        if repr(before[key][place]) != repr(after[key][place])  # as text, NaN equals NaN
    )
    changed = sum(repr(before[key]) != repr(after[key]) for key in both)
    return {
        "appeared": len(after.keys() - both),
        "gone": len(before.keys() - both),
        "changed": changed,
        "by_column": columns,
    }


def told(found: TableDifference) -> dict[str, Any]:
    return {name: getattr(found, name) for name in ("appeared", "gone", "changed", "by_column")}


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(ROWS, st.booleans()), min_size=2, max_size=4), st.sampled_from([1, 5]))
def test_what_was_written_in_between_is_told(
    tmp_path_factory: pytest.TempPathFactory, states: list[Any], at_once: int
) -> None:
    table = Table(tmp_path_factory.mktemp("table"))
    seen = []
    for rows, compacted in states:
        table.become(rows)
        if compacted:
            table.compact()
        seen.append((table.version, rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_diff, "ROWS_AT_ONCE", at_once)
        for earlier, before in seen:
            for later, after in seen:
                found = compare(table.path, earlier, later, KEYS)

                assert expected(before, after) == told(found)
                assert found.same == (not any(told(found).values()))


def test_files_that_both_versions_have_are_not_read(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.become({(n, "x"): (Decimal(n), 0.0, None) for n in range(50)})
    first = table.version
    (old,) = DeltaTable(str(table.path)).file_uris()
    write_deltalake(str(table.path), as_table({(99, "x"): (None, None, None)}, 9), mode="append")
    (table.path / old.rsplit("/", 1)[1]).unlink()

    found = compare(table.path, first, table.version, KEYS)

    assert (1, 0, 0) == (found.appeared, found.gone, found.changed)
    assert [(99, "x")] == found.examples_appeared


def test_examples_are_few_and_say_what_was_and_is(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.become({(n, "x"): (Decimal(n), 0.0, None) for n in range(6)})
    first = table.version
    table.become({(n, "x"): (Decimal(n), 1.0, None) for n in range(3, 9)})

    found = compare(table.path, first, table.version, KEYS, examples_max=2)

    assert (3, 3, 3) == (found.appeared, found.gone, found.changed)
    sizes = [found.examples_appeared, found.examples_gone, found.examples_changed]
    assert [2, 2, 2] == list(map(len, sizes))
    some = found.examples_changed[0]
    assert ChangedRow(some.key, {"rate": (0.0, 1.0)}) == some


def test_rows_without_a_key_are_counted_as_often_as_they_are_there(tmp_path: Path) -> None:
    table = Table(tmp_path)
    twice = as_table({(1, "x"): (Decimal(1), 0.0, None)}, 1)
    write_deltalake(str(table.path), twice, mode="append")
    first = table.version
    write_deltalake(str(table.path), twice, mode="append")
    table.compact()

    found = compare(table.path, first, table.version)

    assert (1, 0, 0) == (found.appeared, found.gone, found.changed)
    back = compare(table.path, table.version, first)
    assert (0, 1, 0) == (back.appeared, back.gone, back.changed)


def test_columns_that_came_or_went_are_named(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.become({(1, "x"): (Decimal(1), 0.0, None)})
    first = table.version
    wider = as_table({(2, "x"): (None, None, None)}, 2).append_column("note", pa.array(["new"]))
    write_deltalake(str(table.path), wider, mode="append", schema_mode="merge")

    found = compare(table.path, first, table.version, KEYS)

    assert (("note",), ()) == (found.columns_added, found.columns_gone)
    assert (1, 0) == (found.appeared, found.changed)
    assert ("note",) == compare(table.path, table.version, first, KEYS).columns_gone


def test_a_version_that_is_gone_is_refused(tmp_path: Path) -> None:
    table = Table(tmp_path)

    with pytest.raises(SinkUnavailableError, match="a version of a table cannot be read"):
        compare(table.path, 0, 99, KEYS)
