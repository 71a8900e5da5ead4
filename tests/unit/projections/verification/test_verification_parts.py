"""Parts of verification that need no server: keys as texts, sieve, throttle, what is refused."""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.archive.table import DAY
from projections.changes.documents import decoded_key, key_text, key_values, source_key
from projections.changes.row_batch import RowPart
from projections.changes.row_change import ReadSpan, RowChange
from projections.changes.sink import StoredKey
from projections.common.throttle import Throttle
from projections.definition.views import DerivedView, Store
from projections.errors import PlanError, RepairRefusedError, VerificationError
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.publishing.published_versions import Published
from projections.stores.delta.sink import WarehouseSink
from projections.verification.compared_stores import ComparedStores
from projections.verification.key_filter import ComparedRows, differing
from projections.verification.recheck import KEYS_AT_ONCE, Rounds
from projections.verification.repair import refuse
from projections.verification.report import KeyFinding, KeyVerdict, Uncompared, ViewReport
from projections.verification.staleness import with_staleness
from projections.verification.verify import JobVerification

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

TEXT = Column("a", ColumnKind.TEXT, "text")
NUMBER = Column("b", ColumnKind.INTEGER, "bigint", nullable=False)
BYTES = Column("c", ColumnKind.BYTES, "bytea", nullable=False)
_texts = st.none() | st.text(alphabet="a:\\N0\n\xf8", max_size=6)


@given(_texts, st.integers(-(2**63), 2**63 - 1))
def test_the_text_of_a_key_has_its_values(text: str | None, number: int) -> None:
    assert key_text([r"\N"]) != key_text([None])
    for columns, values in (((TEXT, NUMBER), (text, number)), ((NUMBER, TEXT), (number, text))):
        assert values == key_values(key_text(values), columns)
    assert (number,) == key_values(key_text([number]), (NUMBER,))
    assert (text,) == key_values(key_text([text]), (TEXT,))


def test_a_key_is_told_to_postgres_and_to_a_table_in_their_own_forms() -> None:
    values = key_values(key_text([7, "AP8="]), (NUMBER, BYTES))

    assert ("7", "\\x00ff") == source_key(values, (NUMBER, BYTES))
    assert (7, b"\x00\xff") == decoded_key(values, (NUMBER, BYTES))


_words = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3)


@given(st.lists(_words) | st.lists(st.integers(-(2**63), 2**63 - 1)) | st.lists(st.text()))
def test_keys_of_many_rows_are_those_of_each(values: list[Any]) -> None:
    part = RowPart(("other", "id"), [(None, value) for value in values])

    assert [key_text((value,)) for value in values] == part.keys(["id"])


def batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    left = iter(rows)
    while some := list(islice(left, 1000)):
        yield some


_rows = st.dictionaries(st.text(max_size=4), st.integers(0, 2), max_size=40)


@settings(deadline=None)  # each writes files
@given(_rows, _rows, st.lists(st.text(max_size=4), max_size=4))
def test_the_sieve_lets_pass_what_is_equal_once_on_both_sides(
    source: dict[str, int], store: dict[str, int], doubled: list[str]
) -> None:
    twice = [key for key in doubled if key in store]
    with closing(ComparedRows(("id",))) as one, closing(ComparedRows(("id",))) as other:
        for side, rows in ((one, source), (other, store)):
            for some in batches(rows.items()):
                side.add(RowPart(("id", "value"), some))
        other.add(RowPart(("id", "value"), [(key, store[key]) for key in twice]))

        found = {key for part in differing(one, other) for key in part}

    differ = {key for key in source.keys() | store.keys() if source.get(key) != store.get(key)}
    assert {key_text((key,)) for key in differ.union(twice)} == found


def test_the_sieve_has_more_rows_than_it_keeps_in_memory_and_no_file_by_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are those of people: a verification that is killed leaves none of them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with closing(ComparedRows(("id",))) as one, closing(ComparedRows(("id",))) as other:
        for side in (one, other):
            rows = [
                (f"key-{number:060d}", number if number != 119_999 else id(side))
                for number in range(120_000)
            ]
            for part in batches(rows):
                side.add(RowPart(("id", "value"), part))

        found = [key for part in differing(one, other) for key in part]

        assert [f"key-{119_999:060d}"] == found
        assert [] == list(tmp_path.iterdir())


def test_a_throttle_pauses_for_what_the_budget_leaves_to_others() -> None:
    throttle, began = Throttle(0.25), time.monotonic()
    for _ in range(3):
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            pass
        throttle.step()

    assert time.monotonic() - began >= 3 * 0.08
    for budget in (0.0, 1.5, -1.0):
        with pytest.raises(VerificationError, match="share of time"):
            Throttle(budget, error=VerificationError)


def test_a_throttle_that_is_stopped_pauses_no_more() -> None:
    stop = threading.Event()
    throttle = Throttle(0.001, stop)
    stop.set()
    time.monotonic()
    began = time.monotonic()
    throttle.step()
    throttle.rest(20)

    assert throttle.stopped
    assert time.monotonic() - began < 5


class _Truth:
    withheld = 0

    def __init__(self, rows: dict[str, dict[str, int]]) -> None:
        self.rows = rows

    def settle(self) -> bool:
        return True

    def of_keys(self, keys: list[str]) -> tuple[dict[str, Any], int]:
        return {key: self.rows[key] for key in keys if key in self.rows}, 0


class _Restless:
    """A store in which one key has another version each time."""

    def __init__(self, rows: dict[int, dict[str, int]]) -> None:
        self.rows, self.looks = rows, 0

    def stored(self, _: object, keys: list[tuple[int]]) -> list[StoredKey]:
        self.looks += 1
        return [
            StoredKey(
                self.looks if key == (1,) else 8,
                ({"b": key[0], "n": -self.looks},)
                if key == (1,)
                else (self.rows[key[0]],)
                if key[0] in self.rows
                else (),
            )
            for key in keys
        ]


def test_rounds_judge_what_holds_still_and_give_up_what_does_not() -> None:
    """More keys than one round takes, so that each store and each key has its turn."""
    count = KEYS_AT_ONCE + 10
    columns = (NUMBER, Column("n", ColumnKind.INTEGER, "bigint"))
    schema = SimpleNamespace(columns=columns, by_name={c.name: c for c in columns})
    plan: Any = SimpleNamespace(name="v", keys=("b",), schema=schema, absent=frozenset())
    rows = {str(n): {"b": n, "n": n} for n in range(1, count + 1)}
    store = _Restless({n: {"b": n, "n": n} for n in range(1, count + 1)})
    store.rows[2] = {"b": 2, "n": 0}
    store.rows[5] = {"b": 5, "n": 0}
    del store.rows[3]
    del rows["4"]
    reach: Any = SimpleNamespace(behind=lambda *_: set())
    truth, stores = _Truth(rows), ComparedStores({Store.CACHE: store})  # type: ignore[dict-item]
    made: Any = Rounds(plan, truth, stores, reach, Throttle(), lambda _: {"5"})  # type: ignore[arg-type]

    found = [outcomes[Store.CACHE] for outcomes in made.judged({Store.CACHE: [*rows, "4"]})]

    said = {each.key: each.verdict for outcome in found for each in outcome.findings}
    assert said == {
        "2": KeyVerdict.DIFFERENT,
        "3": KeyVerdict.MISSING,
        "4": KeyVerdict.EXTRA,
        "5": KeyVerdict.QUARANTINED,
    }
    assert {"1"} == set().union(*(outcome.moving for outcome in found))


def test_a_view_made_from_others_is_repaired_by_a_job_that_runs_and_by_no_other(
    tmp_path: Path,
) -> None:
    totals: Any = SimpleNamespace(name="totals")
    spec = JobSpec(JobConfig.of_tables("shop", tmp_path, ()), derived=(totals,))
    status = spec.config.status_file
    status.parent.mkdir()
    report = ViewReport("totals", Store.CACHE, 1, 1, 0, 0, None)

    for said in (None, '{"state": "ready", "at": 1.0}', '{"state": "stopped", "at": 9e9}'):
        if said is not None:
            status.write_text(said)
        with pytest.raises(RepairRefusedError, match="no job runs") as refused:
            refuse(spec, report)
        assert "headwater up" in str(refused.value.hint)
    status.write_text(f'{{"state": "ready", "at": {time.time()}}}')
    refuse(spec, report)
    with pytest.raises(RepairRefusedError, match="is not maintained"):
        refuse(spec, replace(report, view="others"))


def test_a_view_of_a_type_that_stores_lack_leaves_the_others_to_be_verified(
    tmp_path: Path,
) -> None:
    places = frozenset({Store.TABLE, Store.CACHE})
    names = ("bare", "whole", "shown")
    derived = tuple(DerivedView(name, ("id",), places, ("orders",), "SELECT 1") for name in names)
    derived += (DerivedView("plain", ("id",), frozenset({Store.TABLE}), ("orders",), "SELECT 1"),)
    spec = JobSpec(JobConfig.of_tables("shop", tmp_path, ()), derived=derived)
    tables = spec.config.addresses.tables
    for view in derived:
        kind = pa.null() if view.name in {"bare", "plain"} else pa.int64()
        schema = pa.schema([("id", pa.int64()), ("n", kind)])
        write_deltalake(str(tables / view.name), schema.empty_table())
    Published(tables, "shop").publish(1, 16, {view.name: 0 for view in derived})
    left_out: list[Uncompared] = []

    found = list(JobVerification(spec, Throttle(), uncompared=left_out.append).plans())

    assert ["whole", "shown"] == [plan.name for plan in found]
    assert [("bare", Store.CACHE, "HW-P002")] == [
        (each.view, each.store, each.fault.code) for each in left_out
    ]
    with pytest.raises(PlanError, match="column n has a type that no store supports"):
        list(JobVerification(spec, Throttle()).plans(["bare"]))
    assert [] == list(JobVerification(spec, Throttle()).plans(["plain"]))


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_row_of_which_the_log_has_a_newer_change_is_stale(
    tmp_path: Path, *, forgotten: bool
) -> None:
    """Where somebody was forgotten, the engine that wrote the files has a type of its own."""
    schema = TableSchema(TableName("public", "orders"), (NUMBER, TEXT), ("b",))
    plan = ViewPlan("orders", "t", "t.public.orders", schema, ("b",), frozenset({Store.CACHE}))
    spec = JobSpec(JobConfig("t", "", "", "", tmp_path, "", "", ()), (plan,))
    archived = [
        {"topic": topic, "op": "u", "key": f'{{"b":{key}}}', "epoch": 1, "lsn": lsn}
        for topic, key, lsn in (
            *(("t.public.orders", 1, lsn) for lsn in (800, 1600)),
            ("t.public.orders", 2, 800),
            ("t.public.others", 3, 1600),
        )
    ]
    file = pa.Table.from_pylist([row | {DAY: date(2026, 1, 1)} for row in archived])
    write_deltalake(str(spec.config.archive), file, partition_by=[DAY])
    if forgotten:
        made = DeltaTable(str(spec.config.archive)).update({"op": "NULL"}, predicate="lsn = 800")
        assert 2 == made["num_updated_rows"]
    findings = tuple(
        KeyFinding(str(key), KeyVerdict.DIFFERENT, (1 << 56) + 800, ("a",)) for key in (1, 2, 3)
    )
    report = ViewReport("orders", Store.CACHE, 9, 0, 0, 4, None, findings=findings)

    (told,) = with_staleness(spec, [report])

    assert (4, 1) == (told.different, told.stale)
    assert ("row 1 (stale in a)", "row 2 (different in a)", "row 3 (different in a)") == (
        told.examples
    )
    assert [report] == with_staleness(replace(spec, plans=()), [report])


@pytest.mark.parametrize("sequence_by", [None, "seen_at"])
def test_a_history_tells_what_each_key_is_now_with_its_newest_change(
    tmp_path: Path, sequence_by: str | None
) -> None:
    seen = Column("seen_at", ColumnKind.TIMESTAMPTZ, "timestamp with time zone")
    schema = TableSchema(TableName("public", "orders"), (NUMBER, TEXT, seen), ("b",))
    plan = ViewPlan(
        "orders",
        "t",
        "t.public.orders",
        schema,
        ("b",),
        frozenset({Store.TABLE}),
        history=HistoryPlan(("a",), sequence_by),
    )

    def change(key: int, version: int, text: str | None) -> RowChange:
        at = datetime(2026, 1, 1, 0, 0, version, tzinfo=UTC)
        row = None if text is None else {"b": key, "a": text, "seen_at": at}
        return RowChange((key,), (1 << 56) + version * 8, row, version * 1_000_000)

    sink = WarehouseSink(tmp_path)
    sink.prepare(plan)
    sink.apply(plan, [change(1, 1, "x"), change(2, 2, "y"), change(3, 3, "z")])
    sink.apply(plan, [change(1, 4, "later"), change(2, 5, None)])

    held = sink.stored(plan, [(1,), (2,), (3,), (4,)])

    versions = [(1 << 56) + 8 * version for version in (4, 5, 3)]
    assert [*versions, 0] == [each.version for each in held]
    assert [["later"], [], ["z"], []] == [[row["a"] for row in each.documents] for each in held]
    read = ReadSpan((1 << 56) + 39, 6_000_000, 6_000_000)
    sink.sweep(plan, read.version, [read])
    (swept,) = sink.stored(plan, [(3,)])
    assert ((1 << 56) + 38, ()) == (swept.version, swept.documents)
    sink.close()
