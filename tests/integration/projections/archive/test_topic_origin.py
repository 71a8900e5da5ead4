"""What a compacted topic is asked and copied, and when a view is not filled from it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from fix_archive import archived
from fix_compaction import await_compacted, compacting
from fix_log import envelope

from cdc.broker.reading import compacted
from cdc.broker.topics import topics, truncation
from cdc.postgres import captures
from cdc.retention import TopicRetention
from cdc.snapshot import reader, reads, request
from cdc.table import TableName
from projections.archive import topic_coverage
from projections.archive.topic_copy import TopicCopy
from projections.changes.record import Record
from projections.definition.views import HistoryColumns, MirrorView, Store
from projections.errors import ArchiveIncompleteError, RebuildRefusedError, ReplayStoppedError
from projections.planning.binding import bind
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.stores.valkey.reader import CacheReader
from projections.versions import fill_from_topic, rebuild, registry
from projections.versions.fill import Filling
from projections.versions.fill_from_topic import remove_left
from projections.versions.version import FillProgress
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_capture import Captured

    from projections.versions.version import ViewVersion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ORDERS = TableName("public", "orders")
HOUR_MS = 3_600_000
LATEST = {ORDERS: TopicRetention.parse("latest", HOUR_MS)}
COMPACT, BOTH = ({"cleanup.policy": each} for each in ("compact", "compact,delete"))


class Place:
    """A captured table whose topic is compacted, and a view of it in the cache."""

    def __init__(self, captured: Captured, cache_url: str, home: Path) -> None:
        self.captured = captured
        self.source = source = captured.spec.name
        self.topic, self.bootstrap = ORDERS.topic(source), captured.spec.kafka_bootstrap
        self.view = MirrorView("orders", source, ORDERS, (), frozenset({Store.CACHE}))
        config = replace(
            JobConfig.of_tables(source, home, ()),
            source_dsn=captured.database,
            bootstrap=self.bootstrap,
            cache_url=cache_url,
        )
        self.spec = JobSpec(config, views=(self.view,))
        self.connection = psycopg.connect(captured.database, autocommit=True)
        bound = bind(self.connection, source, [self.view], decides=True)
        registry.register(self.connection, source, [self.view])
        self.spec = replace(self.spec, plans=bound.plans)

    def origin(self, **said: Any) -> topic_coverage.TopicOrigin:
        view = replace(self.view, **said)
        found = topic_coverage.of_view(self.connection, self.spec.config, view, "orders")
        assert found is not None
        return found

    def begun(self) -> ViewVersion:
        planned = rebuild.plan_rebuild(self.connection, self.spec, self.view, "archive")
        assert ("topic", None) == (planned.source, planned.lacking)
        return rebuild.begin(self.connection, self.spec.config, self.view, planned, 0)

    def filled(self, filling: Filling | None = None) -> None:
        version = rebuild.numbered(self.connection, self.spec.config, "orders", 2)
        plan = rebuild.bind(self.connection, self.spec, version)
        rebuild.prepare(self.spec.config, plan)
        given = filling or Filling()
        fill_from_topic.fill(self.connection, self.spec, version, plan, given)

    def again(self, number: int = 2) -> ViewVersion:
        return rebuild.numbered(self.connection, self.spec.config, "orders", number)


@pytest.fixture
def place(
    capture: Callable[..., Captured], database: str, cache_url: str, tmp_path: Path
) -> Iterator[Place]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        connection.execute("INSERT INTO orders SELECT n, 'note' FROM generate_series(1, 200) n")
    captured = capture("orders", retention=LATEST)
    (tmp_path / "home").mkdir()
    made = Place(captured, cache_url, tmp_path / "home")
    with made.connection as connection:
        wait_until(lambda: _noted(connection, made), timeout_s=60)
        yield made


def _noted(connection: Any, place: Place) -> bool:
    capture = captures.find(connection, place.source)
    return capture is not None and place.topic in (capture.topics or {})


def test_a_topic_begins_with_its_first_offset_still_once_it_is_compacted(place: Place) -> None:
    writes = iter(range(10_000))

    def write() -> None:
        number = next(writes)
        place.captured.execute(
            f"UPDATE orders SET note = 'note {number}' WHERE id BETWEEN 20 AND 200",  # noqa: S608
            f"DELETE FROM orders WHERE id = {1 + number % 10}",  # noqa: S608
        )

    with compacting(place.bootstrap, place.topic):
        left = await_compacted(place.bootstrap, place.topic, write)

    found = place.origin()
    assert found.lacking is None
    assert (frozenset({"compact"}), HOUR_MS / 1000) == (found.topic.policy, found.topic.keeps_s)
    assert 0 == found.topic.bounds[0][0]
    assert left[0] > 0
    place.begun()
    place.filled()
    replayed = place.again().replayed
    assert replayed is not None
    assert {(place.topic, 0)} == replayed.ends.keys()
    assert replayed.ends[place.topic, 0] >= found.topic.bounds[0][1]
    assert not any(place.spec.config.home.joinpath("copies", place.source).glob("*"))
    with psycopg.connect(place.captured.database) as connection:
        rows = dict(connection.execute("SELECT id, note FROM orders").fetchall())
    cached = CacheReader(place.spec.config.cache_url, f"{place.source}:", "orders.v2")
    for key in range(1, 201):
        row = cached.get(key)
        assert rows.get(key) == (None if row is None else row["note"])


def test_what_was_looked_at_and_is_young_is_not_looked_at_twice(place: Place) -> None:
    topic = compacted.look(place.bootstrap, place.topic)
    assert topic is not None

    young = compacted.look_again(place.bootstrap, topic)[0]
    old = compacted.look_again(place.bootstrap, replace(topic, keeps_s=0.0))[0]

    assert (0, []) == (young.intact_from, list(young.offsets))
    assert (topic.span, list(range(topic.span))) == (old.intact_from, list(old.offsets))


def test_a_topic_that_does_not_have_all_is_told_in_the_plan_and_nothing_starts(
    place: Place,
) -> None:
    def said() -> str:
        planned = rebuild.plan_rebuild(place.connection, place.spec, place.view, "archive")
        assert "archive" == planned.source
        with pytest.raises(ArchiveIncompleteError):
            rebuild.begin(place.connection, place.spec.config, place.view, planned, 0)
        return planned.lacking or ""

    topics.alter(place.bootstrap, place.topic, BOTH)
    assert "no archive yet; topic" in said()
    assert "drops records by time or size, too (compact, delete)" in said()
    topics.alter(place.bootstrap, place.topic, {"cleanup.policy": "delete"})
    assert "the source has no archive yet" == said()
    truncation.cut_off(place.bootstrap, {(place.topic, 0): 20})
    topics.alter(place.bootstrap, place.topic, COMPACT)
    assert "partition 0 begins at 20" in said()
    assert "every change" in (place.origin(history=HistoryColumns()).lacking or "")
    topics.alter(place.bootstrap, place.topic, {"min.compaction.lag.ms": "1000"})
    assert "may lose a change 1 s after it came" in said()
    topics.alter(place.bootstrap, place.topic, {"min.compaction.lag.ms": str(HOUR_MS)})

    # a whole read that begins with what is there comes after what was cut off
    spec = place.captured.spec
    request.ask(spec, ORDERS)
    reader.run(spec)
    assert "partition 0 begins at 20" in said(), "nothing is older than the read by the clock"
    earlier = "UPDATE headwater.snapshots SET begun_at = begun_at + interval '2 minutes'"
    place.connection.execute(earlier, ())
    assert place.origin().lacking is None


def test_a_table_that_was_never_read_as_a_whole_or_had_another_name_is_refused(
    place: Place,
) -> None:
    reads.forget(place.connection, place.source)
    assert "no whole read" in (place.origin().lacking or "")
    row = "UPDATE headwater.view_shapes SET tables = %s::jsonb WHERE view = 'orders'"
    place.connection.execute(row, ('[["public", "old"], ["public", "orders"]]',))
    assert "another name" in (place.origin().lacking or "")


def test_a_topic_that_was_made_anew_is_refused(place: Place) -> None:
    topics.delete(place.bootstrap, [place.topic])
    wait_until(lambda: place.topic not in topics.names(place.bootstrap), timeout_s=60)
    properties = LATEST[ORDERS].properties()
    topics.ensure(place.bootstrap, [topics.TopicSpec(place.topic, 1, properties)])

    assert "made anew" in (place.origin().lacking or "")


def test_an_archive_that_has_all_comes_first(place: Place) -> None:
    row = {"id": 1, "note": "n", "big": "b"}
    first = Record(b'{"id":1}', envelope("c", 0x1000, row, order=1), "1", 0, 0)
    archived(place.spec.config.archive, place.topic, [first])

    planned = rebuild.plan_rebuild(place.connection, place.spec, place.view, "archive")

    assert ("archive", None, 1) == (planned.source, planned.lacking, planned.changes)


def test_a_rebuild_that_is_paused_goes_on_until_it_is_too_late(place: Place) -> None:
    version = place.begun()
    stopped = Filling()
    stopped.stopped.set()
    with pytest.raises(ReplayStoppedError):
        place.filled(stopped)
    paused = place.again().replayed
    assert paused is not None
    assert paused.from_topic
    assert not TopicCopy(place.spec.config, version.place).finished()
    assert "topic" == _source(place), "a version goes on with what it was begun with"

    # nothing was written yet, so a new copy will do however late it is
    late = replace(paused, until=time.time() - 1)
    registry.note_replayed(place.connection, place.source, version.place, late)
    place.filled()
    done = place.again().replayed
    assert done is not None
    assert (None, 200) == (done.progress, done.records)
    assert (done.until or 0.0) > time.time() + 3000
    place.filled()  # as if it was killed before the job was told

    late = replace(done, until=time.time() - 1)
    for noted in (late, replace(late, progress={"archive_version": 1, "ends": []})):
        registry.note_replayed(place.connection, place.source, version.place, noted)
        with pytest.raises(RebuildRefusedError, match="cannot go on") as refused:
            place.filled()
        assert "headwater view drop orders 2" in (refused.value.hint or "")


def test_copies_that_were_left_go_with_a_version_or_with_the_next_rebuild(place: Place) -> None:
    version = place.begun()
    mine, other = (TopicCopy(place.spec.config, name) for name in (version.place, "gone.v7"))
    for copy in (mine, other):
        copy.archive.mkdir(parents=True)
    (mine.archive.parent / "copied.json").write_bytes(b"")  # as a machine leaves it that stops
    assert mine.finished() is None
    late = TopicCopy(place.spec.config, "late.v2")
    read = registry.read

    def begins_meanwhile(*given: Any) -> Any:
        late.archive.mkdir(parents=True)
        return read(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "read", begins_meanwhile)
        remove_left(place.connection, place.spec.config)
    assert (True, False) == (mine.archive.exists(), other.archive.exists())
    assert late.archive.exists()

    rebuild.drop(place.connection, place.spec.config, place.again())

    assert not mine.archive.exists()
    assert FillProgress({}).from_topic is False


def _source(place: Place) -> str:
    return rebuild.plan_rebuild(place.connection, place.spec, place.view, "archive").source
