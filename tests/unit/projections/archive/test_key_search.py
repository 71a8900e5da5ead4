"""A search by key finds every change of the key, in each form that JSON gives it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import decode
from projections.archive import scan
from projections.archive.key_search import changes_of_key, key_patterns
from projections.changes.documents import DocumentForm
from projections.changes.record import Record
from tests.fix_archive import archived, compacted
from tests.fix_log import PLAN, TOPIC, envelope
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projections.planning.view_plan import ViewPlan

VALUES: dict[str, tuple[Column, st.SearchStrategy[Any]]] = {
    "shop": (
        Column("shop", ColumnKind.TEXT, "text"),
        st.text(st.sampled_from('ab1-:\\"N/ é\n\t\u2028'), max_size=4),
    ),
    "n": (
        Column("n", ColumnKind.INTEGER, "bigint"),
        st.sampled_from([0, 1, -1, 11, 17, 117, -(1 << 63), (1 << 63) - 1]),
    ),
    "u": (
        Column("u", ColumnKind.UUID, "uuid"),
        st.sampled_from([str(UUID(int=n << 100)) for n in (1, 2, 10**8)]),
    ),
    "price": (
        Column("price", ColumnKind.NUMERIC, "numeric"),
        st.sampled_from(["1.5", "1.50", "11.5", "-1.5", "0"]),
    ),
    "open": (Column("open", ColumnKind.BOOLEAN, "boolean"), st.booleans()),
    "weight": (
        Column("weight", ColumnKind.FLOAT, "double precision"),
        st.sampled_from(["NaN", "1.5"]),
    ),
}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BATCH_ROWS", 4)


def plan_of(names: Sequence[str]) -> ViewPlan:
    columns = tuple(VALUES[name][0] for name in names)
    schema = TableSchema(TableName("public", "things"), columns, tuple(names))
    return replace(PLAN, schema=schema, keys=tuple(names))


def name_of(plan: ViewPlan, fields: dict[str, Any]) -> str:
    by_name = plan.schema.by_name
    return DocumentForm(plan).name_of(tuple(decode(by_name[n], fields[n]) for n in plan.keys))


@settings(max_examples=examples(150))
@given(data=st.data())
def test_every_change_of_a_key_is_found(data: st.DataObject) -> None:
    names = data.draw(
        st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True)
    )
    plan = plan_of(names)
    keys = data.draw(
        st.lists(st.fixed_dictionaries({n: VALUES[n][1] for n in names}), min_size=1, max_size=12)
    )
    records = []
    for number, fields in enumerate(keys):
        text = json.dumps(fields, ensure_ascii=data.draw(st.booleans())).encode()
        value = envelope("c", number + 1, fields)
        records.append(Record(text, value, "1", number % 2, number))
        if data.draw(st.booleans()):
            records.append(Record(text, None, None, number % 2, number + 100))
    wanted = name_of(plan, data.draw(st.sampled_from(keys)))

    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "archive"
        archived(archive, "shop.public.others", [r._replace(partition=5) for r in records])
        archived(archive, TOPIC, records)
        if data.draw(st.booleans()):
            compacted(archive)
        reached: dict[int, int] = {}
        found = list(changes_of_key(archive, TOPIC, key_patterns(plan, wanted), reached))

    seen = {place for place, event in found if name_of(plan, event.key or {}) == wanted}
    own = {
        (record.partition, record.offset)
        for record in records
        if record.value is not None and name_of(plan, json.loads(record.key or b"")) == wanted
    }
    assert own == seen
    assert len(found) == len({place for place, _ in found})
    for partition, end in reached.items():
        assert end == 1 + max(r.offset for r in records if r.partition == partition)
    assert {record.partition for record in records} == reached.keys()


def test_other_keys_are_not_read() -> None:
    plan = plan_of(["shop", "n"])
    records = [
        Record(json.dumps(key).encode(), envelope("c", place + 1, key), "1", 0, place)
        for place, key in enumerate({"shop": f"s{n % 7}", "n": n} for n in range(100))
    ]
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "archive"
        assert [] == list(changes_of_key(archive, TOPIC, [], {}))
        archived(archive, TOPIC, records)

        def read(key: str) -> list[int]:
            found = changes_of_key(archive, TOPIC, key_patterns(plan, key), {})
            return [place[1] for place, _ in found]

        assert [17] == read("s3:17")
        assert [] == read("s4:17")
        assert [] == read("s3:seventeen")
