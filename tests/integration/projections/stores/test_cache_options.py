"""Lookups, counters and leaderboards say what the rows say, whatever came in which order."""

from __future__ import annotations

import random
import secrets
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import Applied, RowChange
from projections.definition.cache_options import CacheOptions
from projections.definition.views import Store
from projections.errors import CacheUnknownError, NoStoredRowError, UnholdableValueError
from projections.planning.view_plan import ViewPlan
from projections.stores.valkey.reader import CacheReader, Count, Rank
from projections.stores.valkey.sink import CacheSink
from tests.fix_seeds import examples
from tests.oracles.sink_contract import SinkContract, latest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from projections.changes.sink import Sink

pytestmark = pytest.mark.integration

COLUMNS = (
    Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("customer", ColumnKind.TEXT, "text"),
    Column("status", ColumnKind.TEXT, "text"),
    Column("total", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
    Column("points", ColumnKind.INTEGER, "bigint"),
    Column("placed_at", ColumnKind.TIMESTAMPTZ, "timestamp with time zone"),
    Column("note", ColumnKind.TEXT, "text"),
)
OPTIONS = CacheOptions(
    lookups=["customer:{customer}:orders"],
    counters={"orders:{status}": "*", "revenue:{customer}:{status}": "total", "points": "points"},
    leaderboards={"spenders:{status}": "total", "latest": "placed_at"},
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = 1 << 56
PREFIX = "t:"


def make_plan(options: CacheOptions = OPTIONS) -> ViewPlan:
    schema = TableSchema(TableName("public", "orders"), COLUMNS, ("id",))
    options.check("orders", schema)
    name = f"orders_{secrets.token_hex(5)}"
    everywhere = frozenset(Store)
    return ViewPlan(name, "t", "t.public.orders", schema, ("id",), everywhere, cache=options)


def upsert(version: int, number: int, **values: object) -> RowChange:
    row: dict[str, object] = {column.name: None for column in COLUMNS}
    row |= {"id": number, "customer": "ann", "status": "paid", "total": Decimal("9.90")}
    row |= {"points": 1, "placed_at": datetime(2026, 1, 1, tzinfo=UTC), "note": "n"} | values
    unchanged = tuple(name for name, value in row.items() if value is ...)
    return RowChange((number,), FIRST + version, row | dict.fromkeys(unchanged), 1, unchanged)


def delete(version: int, number: int) -> RowChange:
    return RowChange((number,), FIRST + version, None, 1)


@pytest.fixture
def sink(cache_url: str) -> Iterator[CacheSink]:
    sink = CacheSink(cache_url, PREFIX)
    yield sink
    sink.close()


@pytest.fixture
def client(cache_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(cache_url, decode_responses=True) as client:
        yield client


def beside(client: redis.Redis, plan: ViewPlan) -> dict[str, Any]:
    """All that lies beside the rows of a view, by name."""
    read = {"set": client.smembers, "hash": client.hgetall, "zset": _scores(client)}
    found = {}
    for what in ("lookup", "counter", "leaderboard"):
        begin = f"{PREFIX}_{what}:{plan.name}:"
        for key in client.scan_iter(f"{begin}*"):
            found[f"{what} {key.removeprefix(begin)}"] = read[client.type(key)](key)
    return found


def _scores(client: redis.Redis) -> Callable[[str], dict[str, float]]:
    return lambda key: dict(client.zrange(key, 0, -1, withscores=True))


def expected(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same, from rows."""
    found: dict[str, Any] = defaultdict(lambda: defaultdict(int))
    sets: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        key, customer, status = str(row["id"]), row["customer"], row["status"]
        if customer is not None:
            sets[f"lookup customer:{_part(customer)}:orders"].add(key)
        if status is not None:
            found[f"counter orders:{_part(status)}"]["rows"] += 1
        if None not in (customer, status, row["total"]):
            name = f"counter revenue:{_part(customer)}:{_part(status)}"
            found[name]["rows"] += 1
            found[name]["sum"] += int(row["total"] * 100)
        if row["points"] is not None:
            found["counter points"]["rows"] += 1
            found["counter points"]["sum"] += row["points"]
        if None not in (status, row["total"]):
            found[f"leaderboard spenders:{_part(status)}"][key] = float(row["total"])
        found["leaderboard latest"][key] = float(
            (row["placed_at"] - EPOCH) // timedelta(microseconds=1)
        )
    counters = {
        name: {k: v if "leader" in name else str(v) for k, v in parts.items()}
        for name, parts in found.items()
    }
    return {**counters, **sets}


def _part(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:")


class _Laid:
    """A sink whose views are laid out otherwise."""

    def __init__(self, sink: CacheSink, options: CacheOptions) -> None:
        self._sink = sink
        self._options = options

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._sink, name)
        if name == "close":
            return method
        return lambda plan, *rest: method(replace(plan, cache=self._options), *rest)


class TestHash(SinkContract):
    """Rows as hashes keep the contract of every sink."""

    @pytest.fixture
    def open_sink(self, cache_url: str) -> Callable[[], Sink]:
        options = CacheOptions(layout="hash", lookups=["{note}"], counters={"{part}": "*"})
        return lambda: _Laid(CacheSink(cache_url, "t:"), options)


class TestPassing(SinkContract):
    """Rows that live for a time keep it too: versions are remembered apart from them."""

    @pytest.fixture
    def open_sink(self, cache_url: str) -> Callable[[], Sink]:
        options = CacheOptions(ttl=timedelta(hours=1), leaderboards={"w": "placed_at"})
        return lambda: _Laid(CacheSink(cache_url, "t:"), options)


_texts = st.sampled_from([None, "", "a", "a:b", "\\", "ø\0"])
_changes = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.integers(1, 9),
        st.booleans(),
        st.fixed_dictionaries(
            {
                "customer": _texts,
                "status": _texts,
                "total": st.none() | st.decimals(-99, 99, places=2),
                "points": st.none() | st.integers(-9, 9),
                "placed_at": st.integers(-(2**50), 2**50).map(
                    lambda us: EPOCH + timedelta(microseconds=us)
                ),
            }
        ),
    ),
    max_size=16,
    unique_by=lambda drawn: drawn[:2],
)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(drawn=_changes, layout=st.sampled_from(["document", "hash"]), data=st.data())
def test_what_lies_beside_rows_is_what_the_rows_say(
    sink: CacheSink,
    client: redis.Redis,
    drawn: list[tuple[int, int, bool, dict[str, Any]]],
    layout: str,
    data: st.DataObject,
) -> None:
    plan = make_plan(replace(OPTIONS, layout=layout))
    changes = [
        delete(version, number) if deleted else upsert(version, number, **values)
        for number, version, deleted, values in drawn
    ]
    shuffled = data.draw(st.permutations(changes + changes[: len(changes) // 2]))
    cut = data.draw(st.integers(0, len(shuffled)))

    for batch in (shuffled[:cut], shuffled[cut:], shuffled[: cut // 2]):
        sink.apply(plan, latest(batch))

    rows = [change.row for change in latest(changes) if change.row is not None]
    assert expected(rows) == beside(client, plan)
    sink.sweep(plan, FIRST + 100)
    assert {} == beside(client, plan)
    own = set(client.scan_iter(f"{PREFIX}*{plan.name}*"))
    assert own <= {f"{PREFIX}_floor:{plan.name}"}


def test_writers_that_race_leave_what_the_rows_say(cache_url: str, client: redis.Redis) -> None:
    plan = make_plan()
    changes = [
        delete(version, number)
        if (version + number) % 7 == 0
        else upsert(version, number, customer="abc"[version % 3], total=Decimal(version))
        for number in range(40)
        for version in range(1, 30)
    ]

    def write(seed: int) -> None:
        sink, order = CacheSink(cache_url, PREFIX), random.Random(seed)  # noqa: S311
        shuffled = order.sample(changes, len(changes))
        for start in range(0, len(shuffled), 60):
            sink.apply(plan, latest(shuffled[start : start + 60]))
        sink.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    rows = [change.row for change in latest(changes) if change.row is not None]
    assert expected(rows) == beside(client, plan)


def test_a_row_keeps_its_part_with_values_that_the_log_does_not_repeat(
    sink: CacheSink, client: redis.Redis
) -> None:
    plan = make_plan()
    sink.apply(plan, [upsert(1, 1, customer="ann")])

    sink.apply(plan, [upsert(2, 1, customer=..., total=Decimal("1.00"))])

    assert {"1"} == beside(client, plan)["lookup customer:ann:orders"]
    assert {"rows": "1", "sum": "100"} == beside(client, plan)["counter revenue:ann:paid"]


@pytest.mark.parametrize(
    ("key", "kind"),
    [("lookup:{}:customer:ann:orders", "string"), ("counter:{}:orders:paid", "list")],
)
def test_something_else_under_a_name_holds_up_only_the_rows_that_need_it(
    sink: CacheSink, client: redis.Redis, key: str, kind: str
) -> None:
    plan = make_plan()
    sink.apply(plan, [upsert(1, 1, customer="bob", status="open")])
    before = beside(client, plan)
    foreign = f"{PREFIX}_{key.format(plan.name)}"
    client.set(foreign, "secret") if kind == "string" else client.rpush(foreign, "secret")

    applied = sink.apply(plan, [upsert(2, 1), upsert(2, 2, customer="bob", status="open")])

    (refused,) = applied.refused
    assert ((1,), "WRONGTYPE") == (refused.change.key, refused.error.detail)
    client.delete(foreign)
    assert beside(client, plan).keys() == before.keys()  # nothing is left of what was refused
    assert Applied(upserted=1) == sink.apply(plan, [upsert(2, 1)])
    assert {"1"} == beside(client, plan)["lookup customer:ann:orders"]


def test_what_is_not_held_exactly_is_refused_by_column(sink: CacheSink) -> None:
    plan = make_plan(CacheOptions(counters={"sum": "points"}, leaderboards={"top": "points"}))
    odd = upsert(1, 1, points=2**53 + 1)

    applied = sink.apply(plan, [odd, upsert(1, 2, points=2**53)])

    (refused,) = applied.refused
    assert (odd, 1) == (refused.change, applied.upserted)
    assert isinstance(refused.error, UnholdableValueError)
    assert "column points" in refused.error.message


def test_a_sum_that_would_overflow_is_refused_and_leaves_everything_as_it_was(
    sink: CacheSink, client: redis.Redis
) -> None:
    plan = make_plan(CacheOptions(counters={"sum": "points", "orders:{status}": "*"}))
    sink.apply(plan, [upsert(1, 1, points=2**63 - 1)])
    before = beside(client, plan)

    applied = sink.apply(plan, [upsert(1, 2, points=1), upsert(1, 3, points=-1, status="open")])

    (refused,) = applied.refused
    assert ("a sum beyond 63 bits", 1) == (refused.error.detail, applied.upserted)
    assert before["counter orders:paid"] == beside(client, plan)["counter orders:paid"]
    assert str(2**63 - 2) == beside(client, plan)["counter sum"]["sum"]


def test_a_row_that_went_by_itself_comes_back_by_a_newer_change_only(
    sink: CacheSink, client: redis.Redis
) -> None:
    plan = make_plan(replace(OPTIONS, ttl=timedelta(hours=1)))
    sink.apply(plan, [upsert(5, 1), upsert(5, 2)])
    assert 0 < client.pttl(f"{PREFIX}{plan.name}:1") <= 3_600_000
    client.delete(f"{PREFIX}{plan.name}:1")  # as the server does when its time has come

    applied = sink.apply(plan, [upsert(4, 1), upsert(4, 2)])

    assert Applied(stale=2) == applied
    assert {"1", "2"} == beside(client, plan)["lookup customer:ann:orders"]
    (refused,) = sink.apply(plan, [upsert(6, 1, note=...)]).refused
    assert isinstance(refused.error, NoStoredRowError)
    assert Applied(upserted=1) == sink.apply(plan, [upsert(7, 1, customer="bob")])
    assert {"2"} == beside(client, plan)["lookup customer:ann:orders"]
    client.delete(f"{PREFIX}{plan.name}:1")
    sink.sweep(plan, FIRST + 100)
    assert {} == beside(client, plan)


def test_rows_of_one_layout_become_rows_of_the_other(sink: CacheSink, client: redis.Redis) -> None:
    plan = make_plan()
    hashed = replace(plan, cache=replace(OPTIONS, layout="hash"))
    sink.apply(plan, [upsert(1, 1), upsert(5, 2)])

    assert Applied(upserted=1, stale=1) == sink.apply(hashed, [upsert(2, 1), upsert(2, 2)])

    assert ("hash", "string") == tuple(client.type(f"{PREFIX}{plan.name}:{n}") for n in (1, 2))
    assert Applied(upserted=1, deleted=1) == sink.apply(plan, [upsert(6, 1), delete(6, 2)])
    assert [1] == [row["id"] for row in sink.documents(plan)]


def test_a_view_that_has_nothing_beside_its_rows_any_more_is_rid_of_it(
    sink: CacheSink, client: redis.Redis
) -> None:
    plan = make_plan()
    sink.apply(plan, [upsert(1, 1)])

    sink.drop_beside(plan)

    assert {} == beside(client, plan)
    assert [1] == [row["id"] for row in sink.documents(plan)]


@pytest.mark.parametrize("layout", ["document", "hash"])
def test_applications_read_what_they_declared(sink: CacheSink, cache_url: str, layout: str) -> None:
    plan = make_plan(replace(OPTIONS, layout=layout))
    sink.prepare(plan)
    odd = "a:b\\"
    sink.apply(plan, [upsert(1, n, total=Decimal(n), note=None) for n in (1, 2, 3)])
    sink.apply(plan, [upsert(1, 4, customer=odd, points=7)])

    with CacheReader(cache_url, PREFIX, plan.name) as view:
        assert view.building
        row = view.get(4)
        assert row is not None
        assert (4, odd, "9.90", 7, None) == (
            *map(row.get, ["id", "customer", "total", "points"]),
            None,
        )
        assert view.get(9) is None
        keys = view.lookup("customer:ann:orders")
        assert [1, 2, 3] == [found["id"] for found in view.rows(keys) if found is not None]
        assert ["4"] == view.lookup("customer:{customer}:orders", customer=odd)
        assert Count(4) == view.count("orders:paid")
        assert Count(0) == view.count("orders:{status}", status="open")
        assert Count(3, Decimal("6.00")) == view.count("revenue:ann:paid")
        assert [Rank("4", Decimal("9.9")), Rank("3", Decimal(3))] == view.top(
            "spenders:paid", limit=2
        )
        assert ["1", "2"] == [r.key for r in view.top("spenders:paid", limit=2, lowest=True)]
        assert ["customer:a\\:b\\\\:orders", "customer:ann:orders"] == view.names("lookup")
        for wrong in (view.lookup, view.count, view.top):
            with pytest.raises(CacheUnknownError):
                wrong("nothing:of:that:kind")
    with pytest.raises(CacheUnknownError):
        CacheReader(cache_url, PREFIX, "nothing")


@pytest.mark.parametrize(
    "text", ["2026-11-21T09:00:07Z", "2026-11-21 10:00:07.000+01:00", "2026-11-21 09:00:07"]
)
def test_a_time_of_a_key_is_found_however_it_is_written(
    sink: CacheSink, cache_url: str, text: str
) -> None:
    plain = make_plan(CacheOptions())
    schema = TableSchema(plain.schema.table, COLUMNS, ("customer", "placed_at"))
    plan = replace(plain, schema=schema, keys=schema.key)
    at = datetime(2026, 11, 21, 9, 0, 7, tzinfo=UTC)
    row = upsert(1, 1, placed_at=at).row
    sink.prepare(plan)
    sink.apply(plan, [RowChange(("ann", at), FIRST + 1, row, 1)])

    with CacheReader(cache_url, PREFIX, plan.name) as view:
        found = view.get("ann", text)
        assert found is not None
        assert 1 == found["id"]
        assert view.get("ann", "2026-11-21T09:00:08Z") is None
        assert view.get("ann", "soon") is None
        assert view.get("ann") is None
