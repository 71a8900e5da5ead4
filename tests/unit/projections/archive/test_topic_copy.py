"""A copy of a compacted topic, taken while it is compacted, fills a mirror as its source is.

The log is compacted as Kafka's brokers do it: piece by piece from the beginning, by the newest
record of each key up to some offset; tombstones go in a later turn.
"""

from __future__ import annotations

import dataclasses
import tempfile
from array import array
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from fix_archive import archived
from fix_log import LEAN, PLAN, TABLE, TOPIC, Source, envelope, groups, numbered, sources
from fix_seeds import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.broker.reading.compacted import CompactedTopic, SecondLook
from cdc.broker.topics.incarnation import Incarnation
from cdc.lsn import Lsn
from cdc.snapshot.reads import Read
from projections.archive import replay, scan
from projections.archive.scan import ArchiveScan
from projections.archive.table import Archive
from projections.archive.task import ReplayOptions, ReplayTarget
from projections.archive.topic_copy import Copied, superseded
from projections.archive.topic_coverage import KEEPS_MIN_S, TopicFacts, lacks, unfit
from projections.changes.applier import Held, TaskApplier
from projections.changes.record import Record
from projections.definition.views import ChangeTime, HistoryColumns, MirrorView, Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.stores.memory import MemorySink
from projections.versions import handover
from projections.versions.version import FillProgress, VersionState, ViewVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from projections.planning.view_plan import ViewPlan


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PART_RECORDS", 3)
    monkeypatch.setattr(scan, "BATCH_ROWS", 4)


class Log:
    """A partition in pieces, and a cleaner that goes on with one piece at a time."""

    def __init__(self, records: Sequence[Record], cleanable: int, chance: Any) -> None:
        self._chance = chance
        self._cleanable = cleanable
        self._seen: set[int] = set()
        length = chance.randint(1, 4)
        self.pieces = [list(records[n : n + length]) for n in range(0, len(records), length)]
        self._cleaner = self._clean()

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            next(self._cleaner, None)

    def read(self, end: int) -> Iterator[Record]:
        """Yields what is there when it is come to, while the cleaner goes on."""
        offset = 0
        while offset < end:
            self.go_on(self._chance.choice([0, 0, 0, 0, 1, 2, 20]))
            here = (r for piece in self.pieces for r in piece if r.offset >= offset)
            found = next(here, None)
            if found is None or found.offset >= end:
                return
            yield found
            offset = found.offset + 1

    def _clean(self) -> Iterator[None]:
        for _ in range(self._chance.randint(1, 4)):
            to = self._cleanable - self._chance.choice([0, 0, 2, 5])
            expires = self._chance.random() < 1 / 2
            newest = {r.key: r.offset for piece in self.pieces for r in piece if r.offset < to}
            for piece in self.pieces:
                if any(record.offset >= to for record in piece):
                    break
                piece[:] = [
                    r
                    for r in piece
                    if newest[r.key] == r.offset
                    and not (expires and r.value is None and r.offset in self._seen)
                ]
                self._seen |= {record.offset for record in piece}
                yield


def as_sent(source: Source) -> list[Record]:
    """The topic with the tombstone that the connector sends after each delete."""
    found: list[Record] = []
    for record in source.topic:
        found.append(record)
        if record.value is not None and b'"op":"d"' in record.value:
            found.append(record._replace(value=None))
    return numbered(found)


def copied(folder: Path, log: Log, cleanable: int, end: int, chance: Any) -> Copied:
    records = list(log.read(end))
    Archive(folder).ends({})
    cut = chance.randint(0, len(records))
    for part in (records[:cut], records[cut:]):
        archived(folder, TOPIC, part)
    intact = chance.randint(cleanable, end)
    left = array("q", (record.offset for record in log.read(intact)))
    gone = superseded(ArchiveScan(folder, [TOPIC]), {0: SecondLook(intact, left)})
    return Copied(TOPIC, "first", {0: end}, len(records), gone)


@settings(max_examples=examples(150), deadline=None)
@given(source=sources(), plan=st.sampled_from([PLAN, LEAN]), data=st.data())
def test_a_mirror_filled_while_its_topic_is_compacted_ends_as_its_source(
    source: Source, plan: ViewPlan, data: st.DataObject
) -> None:
    order = data.draw(st.randoms(use_true_random=False))
    for _ in range(data.draw(st.integers(0, 8))):
        source.together(groups(data.draw), order)
    records = as_sent(source)
    end = len(records) - order.randint(0, len(records) // 2)
    cleanable = end - order.choice([0, 0, 1, end // 2])
    log, sink = Log(records, cleanable, order), MemorySink()
    log.go_on(order.choice([0, 0, 3, 12]))

    with tempfile.TemporaryDirectory() as place:
        copy = copied(Path(place) / "records", log, cleanable, end, order)
        options = ReplayOptions(copied=copy.offsets, taken=copy.taken())
        target = ReplayTarget((plan,), lambda: sink)
        found = replay.replay(Path(place) / "records", [target], options)

    assert {(TOPIC, 0): end} == found.ends
    waiting = {each.key for each in found.waiting[0]}
    waiting |= delivered(plan, records[end:], sink, waiting)
    reread = [source.read_now(int(key.removeprefix('{"id":')[:-1])) for key in sorted(waiting)]
    delivered(plan, numbered([*records, *reread])[len(records) :], sink, set())
    names = [column.name for column in plan.schema.columns]
    rows = {key: {name: row[name] for name in names} for key, row in source.rows.items()}
    assert rows == {row["id"]: row for row in sink.documents(plan)}


def delivered(
    plan: ViewPlan, records: Sequence[Record], sink: MemorySink, waiting: set[str]
) -> set[str]:
    """Takes what comes after the copy; returns the keys that wait."""
    held = {plan.name: Held(frozenset(waiting))}
    with closing(TaskApplier([plan], lambda: sink, held)) as delivery:
        delivery.take(TOPIC, records)
        delivery.finish()
    return {each.key for each in delivery.waiting}


def row(op: str, lsn: int, offset: int, big: str | None, key: int = 1) -> Record:
    fields = None if op == "d" else {"id": key, "note": f"n{lsn}", "big": big}
    value = envelope(op, lsn, fields, key=key, order=1)
    return Record(orjson.dumps({"id": key}), value, "1", 0, offset)


def filled(tmp_path: Path, records: list[Record], left: list[int], end: int) -> Any:
    """Rows and waiting keys of a mirror that is filled from what was copied."""
    archived(tmp_path / "records", TOPIC, records)
    look = {0: SecondLook(end, array("q", left))}
    gone = superseded(ArchiveScan(tmp_path / "records", [TOPIC]), look)
    copy, sink = Copied(TOPIC, "first", {0: end}, len(records), gone), MemorySink()
    options = ReplayOptions(copied=copy.offsets, taken=copy.taken())
    found = replay.replay(tmp_path / "records", [ReplayTarget((PLAN,), lambda: sink)], options)
    return [r["big"] for r in sink.documents(PLAN)], [each.key for each in found.waiting[0]]


def test_a_value_is_not_taken_from_a_record_whose_successors_went_before_they_were_copied(
    tmp_path: Path,
) -> None:
    """The update that gave the value between both was compacted away while they were read."""
    from cdc.values import UNCHANGED_PLACEHOLDER

    first, last = row("c", 0x1000, 0, "old"), row("u", 0x3000, 2, UNCHANGED_PLACEHOLDER)

    assert ([], ['{"id":1}']) == filled(tmp_path, [first, last], [2], 3)


def test_a_value_is_taken_from_a_record_that_is_still_there(tmp_path: Path) -> None:
    from cdc.values import UNCHANGED_PLACEHOLDER

    first, last = row("c", 0x1000, 0, "big"), row("u", 0x3000, 2, UNCHANGED_PLACEHOLDER)

    assert (["big"], []) == filled(tmp_path, [first, last], [0, 2], 3)


def test_a_row_does_not_come_back_whose_delete_went_before_it_was_copied(tmp_path: Path) -> None:
    """Its tombstone is left alone, or not even that."""
    first, other = row("c", 0x1000, 0, "big"), row("c", 0x2000, 4, "other", key=2)
    tombstone = row("d", 0x1800, 3, None)._replace(value=None)

    assert (["other"], []) == filled(tmp_path / "1", [first, tombstone, other], [3, 4], 5)
    assert (["other"], []) == filled(tmp_path / "2", [first, other], [4], 5)


NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY_S = 86_400.0
TOPIC_NOW = CompactedTopic(TOPIC, "first", frozenset({"compact"}), DAY_S, {0: (0, 90), 1: (0, 0)})
NOTED = Incarnation("first", (80, 0))


def a_read(number: int = 1, **said: Any) -> Read:
    usual = {
        **{each.name: None for each in dataclasses.fields(Read)},
        "id": number,
        "source": "shop",
        "epoch": 1,
        "table": TABLE.table,
        "topic": TOPIC,
        "state": "done",
        "read_lsn": Lsn(0x1000 * number),
        "rows_read": 5,
        "end_offsets": {0: 50, 1: 0},
        "begun_at": NOW - timedelta(hours=10 - number),
        "ended_at": NOW - timedelta(hours=10 - number, minutes=-5),
    }
    return Read(**{**usual, **said})  # type: ignore[arg-type]


def test_a_topic_that_only_compaction_took_records_out_of_is_whole() -> None:
    assert lacks(TOPIC_NOW, TopicFacts(NOTED, [a_read()], {}), NOW) is None


OLD, NEW = (NOW - timedelta(hours=hours) for hours in (12, 8))
CUT = {"bounds": {0: (7, 90), 1: (0, 0)}}
PART = {"predicate": "id < 5"}


@pytest.mark.parametrize(
    ("topic", "noted", "reads", "first_at", "said"),
    [
        ({"policy": frozenset({"compact", "delete"})}, NOTED, [a_read()], {}, "time or size"),
        ({"keeps_s": KEEPS_MIN_S - 1}, NOTED, [a_read()], {}, "may lose a change"),
        ({}, None, [a_read()], {}, "no one has noted"),
        ({}, Incarnation("other", (80, 0)), [a_read()], {}, "made anew"),
        ({}, Incarnation("first", (91, 0)), [a_read()], {}, "shorter"),
        ({}, NOTED, [], {}, "no whole read"),
        ({}, NOTED, [a_read(state="reading", ended_at=None)], {}, "no whole read"),
        ({}, NOTED, [a_read(**PART)], {}, "no whole read"),
        ({"bounds": {0: (0, 90)}}, Incarnation("first", (80,)), [a_read()], {}, "other partitions"),
        ({}, NOTED, [a_read(begun_at=NOW - timedelta(days=3))], {}, "took longer"),
        (
            {},
            NOTED,
            [a_read(), a_read(2, **PART, begun_at=NOW - timedelta(days=2), ended_at=None)],
            {},
            "took longer",
        ),
        ({}, NOTED, [a_read(), a_read(2, state="cancelled")], {}, "given up"),
        (CUT, NOTED, [a_read()], {}, "partition 0 begins at 7"),
        (CUT, NOTED, [a_read()], {0: NEW.timestamp()}, "partition 0 begins at 7"),
    ],
    ids=[
        "cut by time too",
        "compacted at once",
        "not noted",
        "another topic",
        "shorter",
        "never read",
        "being read",
        "read in part",
        "keys have moved",
        "a read overtaken by compaction",
        "a read in part that is slow",
        "rows of a read that was given up",
        "cut off, and empty since",
        "cut off after the read began",
    ],
)
def test_a_topic_that_may_lack_the_newest_record_of_a_key_is_not(
    topic: dict[str, Any], noted: Incarnation, reads: list[Read], first_at: Any, said: str
) -> None:
    found = lacks(dataclasses.replace(TOPIC_NOW, **topic), TopicFacts(noted, reads, first_at), NOW)

    assert said in (found or "")


def test_a_topic_that_was_cut_off_before_the_last_whole_read_began_is_whole() -> None:
    topic = dataclasses.replace(TOPIC_NOW, **CUT)  # type: ignore[arg-type]
    given_up = a_read(1, state="failed")  # what it has sent is older than the next whole read's
    found = lacks(topic, TopicFacts(NOTED, [given_up, a_read(2)], {0: OLD.timestamp()}), NOW)

    assert found is None


def test_what_the_newest_record_of_a_key_does_not_tell_is_not_made_from_it() -> None:
    mirror = MirrorView("things", "shop", TABLE.table, (), frozenset({Store.TABLE}))

    assert unfit(mirror) is None
    assert unfit(dataclasses.replace(mirror, times=(("at", ChangeTime.COMMIT),))) is None
    assert "every change" in (unfit(dataclasses.replace(mirror, history=HistoryColumns())) or "")
    inserted = dataclasses.replace(mirror, times=(("at", ChangeTime.FIRST_COMMIT),))
    assert "inserted" in (unfit(inserted) or "")


def test_a_version_is_not_taken_over_once_changes_that_it_lacks_may_be_compacted() -> None:
    def version(place: str, until: float | None) -> ViewVersion:
        return ViewVersion(
            place, 2, place, VersionState.JOINING, {}, replayed=FillProgress({}, until=until)
        )

    versions = [version("in_time", 101.0), version("late", 99.0), version("archived", None)]

    assert {"late"} == handover.expired(versions, 100.0)
    assert handover.checked(JobSpec(JobConfig.of_tables("shop", Path("nowhere"), ()))).joining == {}
