"""Derived views on their way from their tables into a store, whatever is given twice or late."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc.table import ColumnKind
from projections.changes.documents import DocumentForm
from projections.changes.row_change import Applied, Refused
from projections.definition.cache_options import CacheOptions
from projections.definition.search_options import SearchOptions, Text
from projections.definition.views import DerivedView, Store
from projections.errors import FeedLostError, PlanError, SinkUnavailableError, UnholdableValueError
from projections.incremental.delivery import DerivedDelivery
from projections.incremental.row_form import derived_plan, form_of, key_of, row_key
from projections.stores.delta.derived_table import DerivedTable
from projections.stores.opensearch.mapping import index_body
from tests.support.memory_sink import MemorySink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from projections.changes.row_change import RowChange
    from projections.planning.view_plan import ViewPlan

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("status", pa.string()),
        ("total", pa.decimal128(12, 2)),
        (
            "items",
            pa.list_(pa.struct([("line", pa.int32()), ("sku", pa.string()), ("at", pa.date32())])),
        ),
    ]
)
DELETED = pa.field("_deleted", pa.bool_())
VIEW = DerivedView("documents", ("id",), frozenset(Store), ("orders",), "SELECT 1")
PLAN = derived_plan(VIEW, "shop", SCHEMA)


class Kept:
    """A derived view's table, changed key by key, and what it should hold."""

    def __init__(self, tables: Path) -> None:
        self.tables = tables
        self.table = DerivedTable(tables, VIEW.name, VIEW.keys)
        self.rows: dict[int | None, dict[str, Any]] = {}

    @property
    def version(self) -> int:
        return DeltaTable(str(self.tables / VIEW.name)).version()

    def write(self, number: int, *changes: dict[str, Any], replaces_all: bool = False) -> None:
        if replaces_all:
            self.rows.clear()
        schema = SCHEMA.append(DELETED)
        rows = [{"_deleted": False, **change} for change in changes]
        for row in rows:
            if row["_deleted"]:
                self.rows.pop(row["id"], None)
            else:
                self.rows[row["id"]] = {name: row.get(name) for name in SCHEMA.names}
        self.table.write(
            pa.Table.from_pylist(rows, schema=schema), number, replaces_all=replaces_all
        )

    def deliver(
        self, sink: MemorySink, number: int, after: int | None, through: int | None = None
    ) -> int:
        """Delivers up to a version of the table; returns it."""
        version = self.version if through is None else through
        DerivedDelivery(self.tables, PLAN, version, number, after).deliver(sink)
        return version

    @property
    def documents(self) -> list[dict[str, Any]]:
        return sorted((document(row) for row in self.rows.values()), key=repr)


def document(row: dict[str, Any]) -> dict[str, Any]:
    """As search and cache have a row."""
    items = row["items"] and [
        {**item, "at": item["at"] and item["at"].isoformat()} for item in row["items"]
    ]
    total = None if row["total"] is None else f"{row['total']:.2f}"
    return {**row, "total": total, "items": items}


def stored(sink: MemorySink, plan: ViewPlan = PLAN) -> list[Any]:
    return sorted(sink.documents(plan), key=repr)


def changes(chance: Random) -> list[dict[str, Any]]:
    keys: list[int | None] = [None, *range(8)]
    return [
        {"id": key, "_deleted": True}
        if chance.random() < 0.4
        else {
            "id": key,
            "status": chance.choice(["paid", "", None]),
            "total": chance.choice([Decimal("9.90"), None]),
            "items": chance.choice([None, [], [{"line": 1, "sku": "a", "at": None}]]),
        }
        for key in chance.sample(keys, chance.randint(1, 5))
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_store_has_what_the_table_has_however_often_and_late_it_is_given(
    tmp_path: Path, seed: int
) -> None:
    chance = Random(seed)  # noqa: S311
    kept, sink = Kept(tmp_path), MemorySink()
    kept.write(10, *changes(chance), replaces_all=True)
    at = kept.deliver(sink, 10, None)
    given = [(10, None, at)]
    for number in range(11, 31):
        for _ in range(chance.randint(0, 3)):
            replaces_all = chance.random() < 0.1
            found = changes(chance)
            kept.write(
                number,
                *(c for c in found if not (replaces_all and "status" not in c)),
                replaces_all=replaces_all,
            )
        if chance.random() < 0.3:
            continue  # a boundary that came while the store was busy
        given.append((number, at, kept.version))
        if chance.random() < 0.3:
            # killed after the store was written, before that was noted
            kept.deliver(sink, number, at)
            continue
        at = kept.deliver(sink, number, at)
        late, after, through = chance.choice(given)
        kept.deliver(sink, late, after, through)  # by one that was stopped, and woke

        assert kept.documents == stored(sink)


@pytest.mark.parametrize("seed", range(3))
def test_a_float_key_has_one_document_in_whatever_form_it_comes(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)  # noqa: S311
    schema = pa.schema([("reading", pa.float64()), ("count", pa.int64())])
    view = DerivedView("by_reading", ("reading",), frozenset(Store), ("o",), "SELECT 1")
    plan, sink = derived_plan(view, "shop", schema), MemorySink()
    table, given = DerivedTable(tmp_path, view.name, view.keys), schema.append(DELETED)
    table.write(given.empty_table(), 10, replaces_all=True)
    rows: dict[str, tuple[float | None, int]] = {}
    at: int | None = None

    for number in range(11, 18):
        for _ in range(chance.randint(1, 3)):
            keys = chance.sample([float("nan"), chance.choice([0.0, -0.0]), 1.5, None], 2)
            changed = [(key, chance.randint(0, 9), chance.random() < 0.4) for key in keys]
            for key, count, deleted in changed:
                one = "0" if key == 0 else str(key)  # -0.0 replaces 0.0
                rows.pop(one, None)
                if not deleted:
                    rows[one] = key, count
            written = [dict(zip(given.names, row, strict=True)) for row in changed]
            table.write(pa.Table.from_pylist(written, schema=given), number)
        version = DeltaTable(str(tmp_path / view.name)).version()
        DerivedDelivery(tmp_path, plan, version, number, at).deliver(sink)
        at = version

        found = [(row["reading"], row["count"]) for row in sink.documents(plan)]
        assert sorted(map(repr, rows.values())) == sorted(
            repr((float(key) if key == "NaN" else key, count)) for key, count in found
        )


def test_all_rows_given_anew_leave_nothing_older(tmp_path: Path) -> None:
    kept, sink = Kept(tmp_path), MemorySink()
    kept.write(10, {"id": 1}, {"id": 2}, replaces_all=True)
    kept.deliver(sink, 10, None)
    kept.write(11, {"id": 1, "_deleted": True})

    kept.deliver(sink, 12, None)

    assert kept.documents == stored(sink)


def test_a_table_that_does_not_tell_its_changes_any_more_says_so(tmp_path: Path) -> None:
    kept, sink = Kept(tmp_path), MemorySink()
    kept.write(10, {"id": 1}, {"id": 2}, replaces_all=True)
    at = kept.deliver(sink, 10, None)
    kept.write(11, {"id": 1, "status": "paid"})
    for file in (tmp_path / VIEW.name / "_change_data").iterdir():
        file.unlink()

    with pytest.raises(FeedLostError):
        kept.deliver(sink, 11, at)


@pytest.mark.parametrize("retried", [frozenset(), frozenset({'{"id":1}'})], ids=["all", "keys"])
def test_a_table_whose_files_are_gone_is_delivered_later(
    tmp_path: Path, retried: frozenset[str]
) -> None:
    kept = Kept(tmp_path)
    kept.write(10, {"id": 1}, {"id": 2}, replaces_all=True)
    for file in (tmp_path / VIEW.name).glob("*.parquet"):
        file.unlink()

    with pytest.raises(SinkUnavailableError):
        DerivedDelivery(tmp_path, PLAN, kept.version, 10, None, retried=retried).deliver(
            MemorySink()
        )


def test_a_key_that_is_null_has_a_name_of_its_own(tmp_path: Path) -> None:
    schema = pa.schema([("status", pa.string()), ("orders", pa.int64())])
    view = DerivedView("by_status", ("status",), frozenset(Store), ("orders",), "SELECT 1")
    plan = derived_plan(view, "shop", schema)
    table = DerivedTable(tmp_path, view.name, view.keys)
    statuses = [None, "None", "null", r"\N"]
    rows = [{"status": status, "orders": 1, "_deleted": False} for status in statuses]
    given = schema.append(DELETED)
    table.write(pa.Table.from_pylist(rows, schema=given), 10, replaces_all=True)
    version = DeltaTable(str(tmp_path / view.name)).version()
    form = DocumentForm(plan)

    sink = MemorySink()
    delivered = DerivedDelivery(tmp_path, plan, version, 10, None).deliver(sink)

    assert [r'{"status":"\\N"}'] == [refused.key for refused in delivered.refused]
    assert {"None", "null", r"\N"} == {form.name_of(key) for key in sink.views[view.name].rows}


class Choosy(MemorySink):
    """A store that refuses changes of these keys, and deletes only if asked."""

    def __init__(self, *keys: int | None) -> None:
        super().__init__()
        self.unholdable: set[int | None] = set(keys)
        self.deletes = True

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        apart = [
            each
            for each in changes
            if each.key[0] in self.unholdable and (each.row or not self.deletes)
        ]
        refused = tuple(Refused(each, UnholdableValueError("too long")) for each in apart)
        return super().apply(plan, [c for c in changes if c not in apart]) + Applied(
            refused=refused
        )


def test_a_refused_row_is_named_until_it_is_written(tmp_path: Path) -> None:
    kept, sink = Kept(tmp_path), Choosy(1, 2)
    kept.write(10, {"id": 1}, {"id": 2}, {"id": 3}, replaces_all=True)
    first = DerivedDelivery(tmp_path, PLAN, kept.version, 10, None).deliver(sink)
    at = kept.version
    kept.write(11, {"id": 1, "status": "paid"}, {"id": 3, "_deleted": True})
    sink.unholdable = {2}

    waiting = frozenset(each.key for each in first.refused)
    second = DerivedDelivery(tmp_path, PLAN, kept.version, 11, at, waiting).deliver(sink)

    assert {'{"id":1}': 10, '{"id":2}': 10} == {each.key: each.version for each in first.refused}
    assert ([], {'{"id":1}'}) == (second.refused, second.written)
    assert [1] == [row["id"] for row in stored(sink)]


def test_a_retry_writes_the_present_rows_of_its_keys_and_no_others(tmp_path: Path) -> None:
    kept, sink = Kept(tmp_path), Choosy(None, 1, 2, 3)
    kept.write(10, {"id": None}, {"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}, replaces_all=True)
    refused = DerivedDelivery(tmp_path, PLAN, kept.version, 10, None).deliver(sink).refused
    kept.write(11, {"id": 3, "_deleted": True})
    sink.unholdable = {2}
    keys = frozenset(each.key for each in refused) - {'{"id":1}'} | {'{"gone":1}'}

    retry = DerivedDelivery(tmp_path, PLAN, kept.version, 11, kept.version, keys, keys)
    delivered = retry.deliver(sink)

    assert ['{"id":2}'] == [each.key for each in delivered.refused]
    assert {'{"id":null}', '{"id":3}'} == delivered.written
    assert [None, 4] == sorted((row["id"] for row in stored(sink)), key=bool)
    assert 2 == delivered.applied.upserted + delivered.applied.deleted


def test_a_refused_delete_counts_only_if_the_store_has_the_row(tmp_path: Path) -> None:
    kept, sink = Kept(tmp_path), Choosy(1)
    kept.write(10, {"id": 1}, {"id": 2}, replaces_all=True)
    first = DerivedDelivery(tmp_path, PLAN, kept.version, 10, None).deliver(sink)
    at = kept.version
    kept.write(11, {"id": 1, "_deleted": True}, {"id": 2, "_deleted": True})
    sink.unholdable, sink.deletes = {1, 2}, False

    waiting = frozenset(each.key for each in first.refused)
    second = DerivedDelivery(tmp_path, PLAN, kept.version, 11, at, waiting).deliver(sink)

    assert ['{"id":2}'] == [each.key for each in second.refused]
    assert {'{"id":1}'} == second.written


def test_a_delivery_ends_early_if_too_many_rows_are_refused(tmp_path: Path) -> None:
    kept, sink = Kept(tmp_path), Choosy(*range(8))
    kept.write(10, {"id": 9}, replaces_all=True)
    kept.deliver(sink, 10, None)
    kept.write(11, *({"id": key} for key in range(8)), replaces_all=True)

    delivery = DerivedDelivery(tmp_path, PLAN, kept.version, 11, None, refused_max=2)
    delivered = delivery.deliver(sink)

    assert not delivered.complete
    assert len(delivered.refused) > 2
    assert [9] == [row["id"] for row in stored(sink)]  # nothing is swept


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [1, None]),
        (pa.string(), ["a:b\\", "", None, "NULL"]),
        (pa.float64(), [1.5, float("inf"), -0.25, None]),
        (pa.decimal128(9, 2), [Decimal("4.50"), Decimal("-1.00")]),
        (pa.date32(), [date(2026, 1, 2)]),
        (pa.timestamp("us", "UTC"), [datetime(2026, 1, 2, 3, 4, 5, 6, UTC)]),
        (pa.timestamp("us"), [datetime(2026, 1, 2, 3, 4, 5)]),  # noqa: DTZ001
        (pa.bool_(), [True, False]),
    ],
    ids=str,
)
def test_a_key_is_read_back_from_its_text(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("key", kind), ("part", pa.int64())])
    view = DerivedView("d", ("key", "part"), frozenset(Store), ("o",), "SELECT 1")
    plan = derived_plan(view, "shop", schema)
    write = row_key(plan)

    keys = [(value, 1) for value in values]

    assert keys == [key_of(plan, write(key)) for key in keys]
    assert len(keys) == len({write(key) for key in keys})


def test_nested_columns_are_found_in_search_as_structs_and_by_their_words() -> None:
    search = SearchOptions(fields={"items.sku": Text(analyzer="english")})
    view = DerivedView("d", ("id",), frozenset({Store.SEARCH}), ("o",), "SELECT 1", search=search)

    plan = derived_plan(view, "shop", SCHEMA)

    properties = index_body(plan)["mappings"]["properties"]
    assert "nested" == properties["items"]["type"]
    assert properties["items"]["include_in_root"]
    assert "english" == properties["items"]["properties"]["sku"]["analyzer"]
    assert ColumnKind.NUMERIC is plan.schema.by_name["total"].kind
    assert form_of(plan) != form_of(PLAN)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"keys": ("items",)}, "cannot be a key"),
        ({"search": SearchOptions(fields={"items.skus": Text()})}, "the view lacks"),
        ({"cache": CacheOptions(leaderboards={"top": "items"})}, "cannot rank"),
    ],
    ids=["key", "search", "cache"],
)
def test_what_is_said_of_a_view_has_to_fit_its_columns(said: dict[str, Any], what: str) -> None:
    fields: dict[str, Any] = {"keys": ("id",), **said}
    view = DerivedView("d", to=frozenset(Store), inputs=("o",), sql="SELECT 1", **fields)

    with pytest.raises(PlanError, match=what):
        derived_plan(view, "shop", SCHEMA)
