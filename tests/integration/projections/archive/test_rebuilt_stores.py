"""Search and cache that tasks fill have what a replay without them writes."""

from __future__ import annotations

import tempfile
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.archive import replay
from projections.archive.lanes import from_all
from projections.archive.rebuilding import keyed_fill, task_ranges
from projections.archive.rebuilding.engine import TaskEngine
from projections.archive.task import ReplayOptions, ReplayResult, ReplayState, ReplayTarget
from projections.changes.row_change import RowChange
from projections.changes.task_outcome import BlockedKeys
from projections.common.task_fence import TaskFence
from projections.definition.search_options import SearchOptions, Text
from projections.definition.views import Store
from projections.errors import ReplayStoppedError
from projections.planning.job_config import StoreAddresses
from projections.stores.factory import open_sink
from projections.stores.opensearch.sink import SearchSink
from tests.fix_archive import archived
from tests.fix_log import KEYS, LEAN, PLAN, TOPIC, numbered, orders, topics
from tests.fix_seeds import examples
from tests.support import event_logs, keyless_logs
from tests.support.replays import drawn_tasks, fill

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from projections.archive.progress import ReplayProgress
    from projections.archive.rebuilding.tasks import TaskRunner
    from projections.changes.record import Record
    from projections.changes.task_outcome import UnappliedRecord
    from projections.planning.view_plan import ViewPlan

pytestmark = pytest.mark.integration

MOST_KEYS = range(max(KEYS) + 8)
FORMER = "shop.public.stuff"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PART_RECORDS", 3)
    monkeypatch.setattr(replay, "BULK_RECORDS", 4)
    monkeypatch.setattr(task_ranges, "TASK_ROWS", 4)
    monkeypatch.setattr(task_ranges, "KEYS_PER_TASK", 12)
    monkeypatch.setattr(keyed_fill, "BUCKET_ROWS", 8)
    monkeypatch.setattr(keyed_fill, "PART_ROWS", 16)


class Servers(NamedTuple):
    """The stores of a test.

    Attributes:
        search_url: OpenSearch.
        cache_url: Valkey.
    """

    search_url: str
    cache_url: str

    def addresses(self, root: Path) -> StoreAddresses:
        return StoreAddresses(root, self.search_url, self.cache_url, f"{uuid4().hex[:8]}:")


@pytest.fixture(scope="session")
def servers(search_url: str, cache_url: str) -> Servers:
    return Servers(search_url, cache_url)


class Filled:
    """A view in one store, and what a replay leaves there."""

    def __init__(
        self,
        plan: ViewPlan,
        store: Store,
        addresses: StoreAddresses,
        tasks: TaskRunner | None = None,
    ) -> None:
        self.plan = replace(plan, name=f"t{uuid4().hex[:12]}", to=frozenset({store}))
        self._addresses = addresses
        self._bulk = (
            None
            if tasks is None
            else TaskEngine(tasks, addresses.tables, self.plan.name, addresses=addresses)
        )
        self.waits: set[str] = set()

    def replayed(self, archive: Path, options: ReplayOptions | None = None) -> ReplayResult:
        (store,) = self.plan.to
        target = ReplayTarget(
            (self.plan,),
            lambda: open_sink(store, self._addresses),
            {self.plan.name: BlockedKeys(frozenset(self.waits))},
            self._set_aside,
            bulk=self._bulk,
        )
        return replay.replay(archive, [target], options or ReplayOptions())

    def _set_aside(self, waiting: Sequence[UnappliedRecord], _: Mapping[str, int]) -> None:
        self.waits |= {each.key for each in waiting}

    def left(self) -> Any:
        """What is stored, and what waits."""
        return *self.stored(), set(self.waits)

    def stored(self, but: Collection[str] = ()) -> Any:
        """Rows, and versions of all keys with those of deletes.

        Args:
            but: Keys without which they are.
        """
        (store,) = self.plan.to
        with closing(open_sink(store, self._addresses)) as sink:
            if isinstance(sink, SearchSink):
                sink.engine.request("POST", f"/{self.plan.name}/_refresh")
            rows = sorted(map(dict, sink.documents(self.plan)), key=repr)
            if but:
                rows = [row for row in rows if key_text(row["id"]) not in but]
            keys = [] if self.plan.append_only else [k for k in MOST_KEYS if key_text(k) not in but]
            asked = [RowChange((key,), 0, None, 0) for key in keys]
            return rows, sink.versions(self.plan, asked)

    def drop(self) -> None:
        (store,) = self.plan.to
        opened: Any = open_sink(store, self._addresses)
        with closing(opened) as sink:
            sink.drop(self.plan)


def key_text(number: int) -> str:
    return orjson.dumps({"id": number}).decode()


def compare(servers: Servers, store: Store, records: list[Record], data: Any) -> None:
    """A view of a table, which had another name before in half of the cases."""
    plan = data.draw(st.sampled_from([PLAN, LEAN]))
    log = {TOPIC: records}
    if data.draw(st.booleans()):
        middle = data.draw(st.integers(0, len(records)))
        plan = replace(plan, former=(FORMER,))
        log = {FORMER: numbered(records[:middle]), TOPIC: numbered(records[middle:])}
    compare_all(servers, store, plan, log, data)


def compare_all(
    servers: Servers,
    store: Store,
    plan: ViewPlan,
    log: Mapping[str, list[Record]],
    data: Any,
) -> None:
    with tempfile.TemporaryDirectory() as place:
        archive = Path(place) / "shop"
        for topic in data.draw(st.permutations(sorted(log))):
            fill(archive, topic, log[topic], data)
        addresses = servers.addresses(Path(place) / "tables")
        one = Filled(plan, store, addresses)
        other = Filled(plan, store, addresses, drawn_tasks(data))

        expected, found = one.replayed(archive), other.replayed(archive)
        # Tasks take all records of a renamed table's key together, a replay some at a time: which
        # records wait behind a quarantined one depends on where such a part ends.
        waiting = one.waits | other.waits if plan.former else set[str]()
        again = other.stored(waiting)
        assert plan.former or one.waits == other.waits
        other.replayed(archive)  # a part that is written twice changes nothing

        assert one.stored(waiting) == again == other.stored(waiting)
        assert plan.former or one.waits == other.waits
        assert (expected.ends, expected.records) == (found.ends, found.records)
        if not from_all(plan):  # else all records are delivered, not the newest
            counts, others = (next(iter(each.counts[0].values())) for each in (expected, found))
            assert (counts.records, counts.applied) == (others.records, others.applied)
        one.drop()
        other.drop()


@settings(max_examples=examples(12), deadline=None)
@given(records=topics(), data=st.data())
def test_the_same_archive_leaves_the_same_cache(
    servers: Servers, records: list[Record], data: st.DataObject
) -> None:
    compare(servers, Store.CACHE, records, data)


@settings(max_examples=examples(6), deadline=None)
@given(records=topics(), data=st.data())
def test_the_same_archive_leaves_the_same_index(
    servers: Servers, records: list[Record], data: st.DataObject
) -> None:
    compare(servers, Store.SEARCH, records, data)


@settings(max_examples=examples(12), deadline=None)
@given(log=event_logs.logs(), data=st.data())
@pytest.mark.parametrize("store", [Store.CACHE, Store.SEARCH])
def test_the_same_archive_leaves_the_same_events(
    servers: Servers,
    store: Store,
    log: dict[str, list[Record]],
    data: st.DataObject,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "PART_RECORDS", 1_000)  # else which ones wait depends on batches
        compare_all(servers, store, event_logs.PLAN, log, data)


@settings(max_examples=examples(12), deadline=None)
@given(records=keyless_logs.logs(), data=st.data())
@pytest.mark.parametrize("store", [Store.CACHE, Store.SEARCH])
def test_the_same_archive_leaves_the_same_rows_without_a_key(
    servers: Servers, store: Store, records: list[Record], data: st.DataObject
) -> None:
    log = {keyless_logs.TOPIC: records}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "PART_RECORDS", 1_000)
        compare_all(servers, store, keyless_logs.PLAN, log, data)


def test_events_that_a_task_delivers_come_to_the_store_of_a_killed_replay(
    tasks: TaskRunner, servers: Servers, tmp_path: Path
) -> None:
    archive = event_logs.placed(tmp_path / "shop", 60)
    addresses = servers.addresses(tmp_path / "tables")
    one, other = (Filled(event_logs.PLAN, Store.CACHE, addresses, each) for each in (None, tasks))
    one.replayed(archive)
    stop, noted = threading.Event(), list[ReplayState]()

    def progress(now: ReplayProgress) -> None:
        if now.delivered:
            stop.set()

    with pytest.raises(ReplayStoppedError):
        other.replayed(archive, ReplayOptions(note=noted.append, stopped=stop, progress=progress))
    other.replayed(archive, ReplayOptions(resume=noted[-1]))

    assert one.left() == other.left()
    assert not list((tmp_path / "tables").glob(".*.filling"))


def test_a_row_that_a_store_refuses_waits_and_the_rest_is_written(
    tasks: TaskRunner, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "BULK_RECORDS", 100)
    records = orders(20)
    value = orjson.loads(records[17].value or b"")
    value["after"]["note"] = "x" * 40_000  # a term has at most 32,766 bytes
    records[17] = records[17]._replace(value=orjson.dumps(value))
    archived(tmp_path / "shop", TOPIC, records)
    addresses = servers.addresses(tmp_path / "tables")
    plan = replace(PLAN, search=SearchOptions({"note": Text(analyzer="keyword")}))
    one, other = (Filled(plan, Store.SEARCH, addresses, each) for each in (None, tasks))

    one.replayed(tmp_path / "shop")
    other.replayed(tmp_path / "shop")

    assert one.left() == other.left()
    assert one.waits
    assert len(one.left()[0]) == 6


def test_a_killed_replay_of_a_cache_goes_on_and_leaves_the_same(
    tasks: TaskRunner, servers: Servers, tmp_path: Path
) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))
    addresses = servers.addresses(tmp_path / "tables")
    one, other = (Filled(PLAN, Store.CACHE, addresses, each) for each in (None, tasks))
    one.replayed(tmp_path / "shop")
    stop, noted = threading.Event(), list[ReplayState]()

    def note(state: ReplayState) -> None:
        noted.append(state)
        if state.part == 1:
            stop.set()

    with pytest.raises(ReplayStoppedError):
        other.replayed(tmp_path / "shop", ReplayOptions(note=note, stopped=stop))
    rows = len(other.left()[0])
    other.replayed(tmp_path / "shop", ReplayOptions(resume=noted[-1]))

    assert 0 < rows < len(one.left()[0])
    assert one.left() == other.left()
    assert not list((tmp_path / "tables").glob(".*.filling"))


def test_no_task_writes_once_its_fence_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "filling"
    folder.mkdir()
    fence = TaskFence(folder)
    with pytest.raises(ReplayStoppedError), fence.task():
        pytest.fail("it was not open")
    fence.open()

    with fence.task():
        assert not fence.close()  # it still works
        with pytest.raises(ReplayStoppedError):
            fence.check()
    assert fence.close()

    assert not folder.exists()
    with pytest.raises(ReplayStoppedError), fence.task():
        pytest.fail("its folder is gone")
