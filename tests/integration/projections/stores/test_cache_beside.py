"""A verification finds what is wrong beside rows in the cache, and nothing where nothing is."""

from __future__ import annotations

import secrets
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.documents import DocumentForm
from projections.changes.row_change import RowChange
from projections.definition.cache_options import CacheOptions
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.expectations.expectation import expect
from projections.definition.views import DerivedView, Store
from projections.incremental.delivery import DerivedDelivery
from projections.incremental.row_form import derived_plan
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import ViewPlan
from projections.publishing.published_versions import Published
from projections.stores.delta.derived_table import DerivedTable
from projections.stores.valkey.index_check import ExpectedIndexes
from projections.stores.valkey.index_scan import MEMBERS_AT_ONCE, entries
from projections.stores.valkey.sink import CacheSink
from projections.verification.verify import verify
from tests.fix_seeds import examples
from tests.oracles.sink_contract import latest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from projections.verification.report import ViewReport

pytestmark = pytest.mark.integration

TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer text, status text, total numeric(12,2), points bigint,
    weight double precision, placed_at timestamptz
)"""
COLUMNS = (
    Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("customer", ColumnKind.TEXT, "text"),
    Column("status", ColumnKind.TEXT, "text"),
    Column("total", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
    Column("points", ColumnKind.INTEGER, "bigint"),
    Column("weight", ColumnKind.FLOAT, "double precision"),
    Column("placed_at", ColumnKind.TIMESTAMPTZ, "timestamp with time zone"),
)
OPTIONS = CacheOptions(
    lookups=["customer:{customer}:orders", "all"],
    counters={"orders:{status}": "*", "revenue:{customer}:{status}": "total", "points": "points"},
    leaderboards={"spenders:{status}": "total", "heaviest": "weight", "latest": "placed_at"},
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = 1 << 56
PREFIX = "t:"
BEGIN = "{prefix}_{what}:{view}:"
Row = dict[str, Any]


def make_plan(options: CacheOptions = OPTIONS, **others: Any) -> ViewPlan:
    schema = TableSchema(TableName("public", "orders"), COLUMNS, ("id",))
    options.check("orders", schema)
    name = f"orders_{secrets.token_hex(5)}"
    stores = frozenset({Store.CACHE})
    plan = ViewPlan(name, "t", "t.public.orders", schema, ("id",), stores, cache=options)
    return replace(plan, **others)


def order(number: int, **values: object) -> Row:
    row: Row = {"id": number, "customer": "ann", "status": "paid", "total": Decimal("9.90")}
    return row | {"points": 1, "weight": 0.1, "placed_at": EPOCH} | values


def upsert(version: int, row: Row) -> RowChange:
    return RowChange((row["id"],), FIRST + version, row, 1)


@pytest.fixture
def sink(cache_url: str) -> Iterator[CacheSink]:
    sink = CacheSink(cache_url, PREFIX)
    yield sink
    sink.close()


@pytest.fixture
def client(cache_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(cache_url, decode_responses=True) as client:
        yield client


Found = tuple[int, int, int, list[str]]


@pytest.fixture
def compare(cache_url: str) -> Callable[[ViewPlan, Sequence[Row]], Found]:
    """Compares what lies beside a view with what rows come to."""

    def compared(plan: ViewPlan, rows: Sequence[Row]) -> Found:
        form, beside = DocumentForm(plan), ExpectedIndexes(plan)
        documents = [form.fields(row) for row in rows]
        for document in documents:
            beside.add(document)
        places = {str(row["id"]): place for place, row in enumerate(rows)}
        found = [each for each in beside.compare(places, entries(cache_url, PREFIX, plan)) if each]
        for key in beside.lacking(places):
            found += beside.lacked(places[key], key, documents[places[key]])
        said = Counter(each.what for each in found)
        extra = said["extra"] + said["of another type"]
        return said["missing"], extra, said["different"], sorted(map(str, found))

    return compared


_texts = st.sampled_from([None, "", "a", "a:b", "\\", "ø\0"])
_rows = st.builds(
    order,
    st.integers(1, 5),
    customer=_texts,
    status=_texts,
    total=st.none() | st.decimals(-99, 99, places=2),
    points=st.none() | st.integers(-9, 9),
    weight=st.none() | st.floats(allow_nan=False),
    placed_at=st.none()
    | st.integers(-(2**50), 2**50).map(lambda us: EPOCH + timedelta(microseconds=us)),
)
_changes = st.lists(
    st.tuples(_rows, st.integers(1, 9), st.booleans()),
    max_size=16,
    unique_by=lambda drawn: (drawn[0]["id"], drawn[1]),
)


@settings(
    max_examples=examples(80),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(drawn=_changes, data=st.data())
def test_nothing_is_found_but_what_was_tampered_with(
    sink: CacheSink,
    client: redis.Redis,
    compare: Callable[[ViewPlan, Sequence[Row]], Found],
    drawn: list[tuple[Row, int, bool]],
    data: st.DataObject,
) -> None:
    plan = make_plan(replace(OPTIONS, layout=data.draw(st.sampled_from(["document", "hash"]))))
    changes = [
        RowChange((row["id"],), FIRST + version, None if deleted else row, 1)
        for row, version, deleted in drawn
    ]
    shuffled = data.draw(st.permutations(changes + changes[: len(changes) // 2]))
    cut = data.draw(st.integers(0, len(shuffled)))
    for batch in (shuffled[:cut], shuffled[cut:], shuffled[: cut // 2]):
        sink.apply(plan, latest(batch))
    rows = [dict(change.row) for change in latest(changes) if change.row is not None]

    assert compare(plan, rows) == (0, 0, 0, [])

    tamper, expected = data.draw(st.sampled_from(list(_tamperings(client, plan))))
    tamper()

    assert expected == compare(plan, rows)


def _tamperings(
    client: redis.Redis, plan: ViewPlan
) -> Iterator[tuple[Callable[[], object], Found]]:
    """All that can be done to a cache, and what is to be found after it."""
    begins = {what: BEGIN.format(prefix=PREFIX, what=what, view=plan.name) for what in _WHAT}
    for what, begin in begins.items():
        read = {"lookup": client.smembers, "leaderboard": lambda k: client.zrange(k, 0, -1)}
        for key in sorted(client.scan_iter(f"{begin}*")):
            name = f"{what} {key.removeprefix(begin)}"
            members = sorted(read[what](key)) if what in read else []
            if what == "counter":
                yield partial(client.delete, key), (1, 0, 0, [f"{name} (missing)"])
                for field in ("rows", "sum"):
                    changed = (0, 0, 1, [f"{name} (different)"])
                    yield partial(client.hincrby, key, field, 1), changed
            for member in members:
                gone, added = f"{name} (row {member} missing)", f"{what} x (row {member} extra)"
                wrong = f"{name} (row {member} different)"
                if what == "lookup":
                    moved = (1, 1, 0, sorted([gone, added]))
                    yield partial(client.srem, key, member), (1, 0, 0, [gone])
                    yield partial(client.smove, key, f"{begin}x", member), moved
                else:
                    yield partial(client.zrem, key, member), (1, 0, 0, [gone])
                    yield partial(client.zadd, key, {member: 0.12345}), (0, 0, 1, [wrong])
    yield (
        partial(client.hset, f"{begins['counter']}x", "rows", 1),
        (0, 1, 0, ["counter x (extra)"]),
    )
    yield (
        partial(client.sadd, f"{begins['lookup']}all", "77"),
        (0, 1, 0, ["lookup all (row 77 extra)"]),
    )
    yield (
        partial(client.zadd, f"{begins['leaderboard']}latest", {"77": 1}),
        (0, 1, 0, ["leaderboard latest (row 77 extra)"]),
    )
    yield (
        partial(client.set, f"{begins['lookup']}y:z", "1"),
        (0, 1, 0, ["lookup y:z (of another type)"]),
    )


_WHAT = ("lookup", "counter", "leaderboard")


def test_large_ones_are_read_in_steps_and_each_member_counts_once(
    sink: CacheSink,
    client: redis.Redis,
    compare: Callable[[ViewPlan, Sequence[Row]], Found],
) -> None:
    plan = make_plan()
    rows = [order(number, weight=number / 7) for number in range(4 * MEMBERS_AT_ONCE)]
    sink.apply(plan, [upsert(1, row) for row in rows])

    assert compare(plan, rows) == (0, 0, 0, [])

    begin = BEGIN.format(prefix=PREFIX, what="lookup", view=plan.name)
    client.sadd(f"{begin}all", *(f"x{n}" for n in range(2 * MEMBERS_AT_ONCE)))
    missing, extra, different, examples = compare(plan, [*rows, order(-1, status="open")])
    assert (2 * MEMBERS_AT_ONCE, 1) == (extra, different)  # what points add up to
    assert missing == 2 + 2 + 3  # in lookups; counters of what is open; on leaderboards
    assert "leaderboard spenders:open (row -1 missing)" in examples


@pytest.fixture
def source(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
    return database


class Kept:
    """A job's views in the cache, as its queries would have written them."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.client = redis.Redis.from_url(spec.config.cache_url, decode_responses=True)

    def insert(self, *rows: Row) -> None:
        """Gives rows to the source."""
        with psycopg.connect(self.spec.config.source_dsn, autocommit=True) as connection:
            for row in rows:
                values = list(row.values())
                connection.execute("INSERT INTO orders VALUES (%s,%s,%s,%s,%s,%s,%s)", values)

    def apply(self, plan: ViewPlan, *changes: RowChange) -> int:
        """Gives changes to a view in the cache; returns how many it refuses."""
        sink = CacheSink(self.spec.config.cache_url, self.spec.config.addresses.cache_prefix)
        try:
            return len(sink.apply(plan, changes).refused)
        finally:
            sink.close()

    def key(self, plan: ViewPlan, what: str, name: str) -> str:
        prefix = self.spec.config.addresses.cache_prefix
        return BEGIN.format(prefix=prefix, what=what, view=plan.name) + name

    def wrong(self) -> dict[str, ViewReport]:
        """Reports of the views that are not what they should be, by their names."""
        return {
            report.view: report for report in verify(self.spec, resting=True) if not report.equal
        }


@pytest.fixture
def kept(source: str, cache_url: str, tmp_path: Path) -> Iterator[Callable[..., Kept]]:
    with ExitStack() as stack:

        def job(*plans: ViewPlan, derived: tuple[DerivedView, ...] = ()) -> Kept:
            name = f"t{secrets.token_hex(4)}"
            places = ("", source, "", tmp_path, cache_url, "", ())
            made = Kept(JobSpec(JobConfig(name, *places), plans, derived=derived))
            stack.callback(made.client.close)
            return made

        yield job


def numbers(report: ViewReport) -> tuple[int, int, int]:
    return report.missing, report.extra, report.different


def test_a_verification_names_what_was_tampered_with(kept: Callable[..., Kept]) -> None:
    plan, twin = make_plan(), make_plan()
    job = kept(plan, twin)
    rows = [order(1), order(2, customer="a:b"), order(3, status="open", total=Decimal("2.50"))]
    job.insert(*rows)
    for view in (plan, twin):
        assert 0 == job.apply(view, *(upsert(1, row) for row in rows))

    assert job.wrong() == {}

    job.client.srem(job.key(plan, "lookup", "customer:a\\:b:orders"), "2")
    job.client.zadd(job.key(plan, "leaderboard", "spenders:paid"), {"1": 10, "3": 2.5})
    job.client.hincrby(job.key(plan, "counter", "orders:paid"), "rows", 1)
    job.client.hincrby(job.key(plan, "counter", "orders:gone"), "rows", 1)
    (report,) = job.wrong().values()

    assert (plan.name, Store.CACHE) == (report.view, report.store)
    assert (1, 2, 2) == numbers(report)
    assert set(report.examples) == {
        "lookup customer:a\\:b:orders (row 2 missing)",
        "leaderboard spenders:paid (row 1 different)",
        "leaderboard spenders:paid (row 3 extra)",
        "counter orders:paid (different)",
        "counter orders:gone (extra)",
    }


def test_rows_that_a_view_is_not_to_have_have_no_part(kept: Callable[..., Kept]) -> None:
    """NULL has none in a pattern, a row withheld none at all; one that went by itself keeps its."""
    plan = make_plan(
        replace(OPTIONS, ttl=timedelta(hours=1)),
        expectations=(expect("few", "points < 5", "drop"),),
    )
    job = kept(plan)
    nowhere = order(2, customer=None, status=None, total=None, weight=None, placed_at=None)
    job.insert(order(1), nowhere, order(3, points=7), order(4))
    job.apply(plan, upsert(1, order(1)), upsert(1, nowhere), upsert(1, order(4)))

    assert job.wrong() == {}

    prefix = job.spec.config.addresses.cache_prefix
    job.client.delete(f"{prefix}{plan.name}:4")  # as the server does when its time has come
    report = job.wrong()[plan.name]
    assert (1, 0, 0) == numbers(report)
    assert (("row 4 (missing)",), 1) == (report.examples, report.withheld)


def test_a_row_that_waits_is_missing_with_the_parts_that_it_would_have(
    kept: Callable[..., Kept],
) -> None:
    options = CacheOptions(
        lookups=["{customer}"], counters={"n": "*", "sum": "points"}, leaderboards={"top": "points"}
    )
    plan = make_plan(options)
    job = kept(plan)
    odd = order(2, customer="bob", points=2**53 + 1)
    job.insert(order(1), odd)

    assert 1 == job.apply(plan, upsert(1, order(1)), upsert(1, odd))

    report = job.wrong()[plan.name]
    assert (2, 0, 2) == numbers(report)  # the row, its lookup; both counters
    assert set(report.examples) == {
        "row 2 (missing)",
        "lookup bob (row 2 missing)",
        "counter n (different)",
        "counter sum (different)",
    }


def test_what_nobody_declares_any_more_is_extra(kept: Callable[..., Kept]) -> None:
    plan = make_plan()
    bare = replace(plan, cache=CacheOptions())
    job = kept(bare)
    job.insert(order(1))
    job.apply(plan, upsert(1, order(1)))

    report = job.wrong()[plan.name]

    assert (0, 8, 0) == numbers(report)
    assert "counter orders:paid (extra)" in report.examples


def test_of_rows_without_a_key_counters_are_verified(kept: Callable[..., Kept]) -> None:
    plan = make_plan(keys=(ROW_ID_COLUMN,))
    job = kept(plan)
    job.insert(order(1), order(2))
    changes = [RowChange((f"0-{n}",), FIRST + 1, order(n), 1) for n in (1, 2)]
    job.apply(plan, *changes)
    job.client.srem(job.key(plan, "lookup", "all"), "0-1")

    assert job.wrong() == {}

    job.client.hincrby(job.key(plan, "counter", "orders:paid"), "rows", -1)
    job.client.sadd(job.key(plan, "lookup", "strange"), "0-1")
    report = job.wrong()[plan.name]
    assert (0, 1, 1) == numbers(report)
    assert {"counter orders:paid (different)", "lookup strange (row 0-1 extra)"} == set(
        report.examples
    )


def test_what_depends_on_a_column_that_only_the_view_has_is_left_alone(
    kept: Callable[..., Kept],
) -> None:
    plan = make_plan(absent=frozenset({"status"}))
    job = kept(plan)
    job.insert(order(1))
    job.apply(plan, upsert(1, order(1)))

    assert job.wrong() == {}

    job.client.delete(job.key(plan, "counter", "points"))
    assert ("counter points (missing)",) == job.wrong()[plan.name].examples


def test_of_a_derived_view_its_table_is_the_truth(kept: Callable[..., Kept]) -> None:
    options = CacheOptions(
        lookups=["{status}"], counters={"{status}": "total"}, leaderboards={"top": "total"}
    )
    stores = frozenset({Store.CACHE})
    view = DerivedView("documents", ("id",), stores, ("orders",), "SELECT 1", cache=options)
    job = kept(derived=(view,))
    spec, tables = job.spec, job.spec.config.addresses.tables
    schema = pa.schema(
        [("id", pa.int64()), ("status", pa.string()), ("total", pa.decimal128(12, 2))]
    )
    rows: list[Mapping[str, Any]] = [
        {"id": None, "status": "a:b", "total": Decimal("1.50"), "_deleted": False},
        {"id": 7, "status": "open", "total": None, "_deleted": False},
    ]
    written = pa.Table.from_pylist(rows, schema=schema.append(pa.field("_deleted", pa.bool_())))
    DerivedTable(tables, view.name, view.keys).write(written, 10, replaces_all=True)
    version = DeltaTable(str(tables / view.name)).version()
    Published(tables, spec.config.source).publish(1, 10, {view.name: version})
    plan = derived_plan(view, spec.config.source, schema)
    sink = CacheSink(spec.config.cache_url, spec.config.addresses.cache_prefix)
    DerivedDelivery(tables, plan, version, 10, None).deliver(sink)
    sink.close()

    assert job.wrong() == {}

    job.client.smove(job.key(plan, "lookup", "a\\:b"), job.key(plan, "lookup", "open"), "\\N")
    report = job.wrong()["documents"]
    assert (1, 1, 0) == numbers(report)
    assert {"lookup a\\:b (row \\N missing)", "lookup open (row \\N extra)"} == set(report.examples)
