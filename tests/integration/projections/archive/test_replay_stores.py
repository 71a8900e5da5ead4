"""A store that a replay has filled is one that live delivery goes on with, as with any other."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from projections.archive import replay
from projections.archive.task import ReplayOptions, ReplayState, ReplayTarget
from projections.changes.applier import TaskApplier
from projections.planning.view_plan import HistoryPlan
from projections.stores.delta.sink import WarehouseSink
from projections.stores.opensearch.sink import SearchSink
from projections.stores.valkey.sink import CacheSink
from tests.fix_archive import archived, compacted
from tests.fix_log import KEYS, PLAN, TOPIC, Source, numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from projections.changes.record import Record
    from projections.changes.sink import Sink
    from projections.planning.view_plan import ViewPlan

pytestmark = pytest.mark.integration

HISTORY = replace(PLAN, name="things_history", history=HistoryPlan(("note", "big")))


def a_source(transactions: int, seed: int) -> Source:
    """Rows written, moved to other keys, deleted, and changed without their large value."""
    source, order = Source(), Random(seed)  # noqa: S311
    source.together([[("copy", *KEYS)]], order)
    for number in range(transactions):
        carry_on(source, order)
        if number == transactions // 3:
            source.truncate()
            source.together([[("copy", *KEYS)]], order)
    return source


def carry_on(source: Source, order: Random) -> None:
    kind = order.choice(["insert", "delete", "note", "note", "big", "move"])
    key = order.choice(list(KEYS))
    source.together(
        [[(kind, key, order.choice([5, 6, 7])) if kind == "move" else (kind, key)]], order
    )


def live(plan: ViewPlan, records: Sequence[Record], open_sink: Callable[[], Sink]) -> list[str]:
    with closing(open_sink()) as sink:
        delivery = TaskApplier([plan], lambda: sink)
        with closing(delivery):
            delivery.take(TOPIC, records)
            delivery.finish()
    return [each.key for each in delivery.waiting]


def rows_of(plan: ViewPlan, open_sink: Callable[[], Sink]) -> dict[int, Any]:
    with closing(open_sink()) as sink:
        return {row["id"]: dict(row) for row in sink.documents(plan)}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PART_RECORDS", 20)


def test_live_delivery_goes_on_with_a_table_that_a_replay_has_filled(tmp_path: Path) -> None:
    check_goes_on(lambda: WarehouseSink(tmp_path / "tables"), tmp_path / "archive")


def test_live_delivery_goes_on_with_a_cache_that_a_replay_has_filled(
    tmp_path: Path, cache_url: str
) -> None:
    check_goes_on(lambda: CacheSink(cache_url, "replayed:"), tmp_path / "archive")


def test_live_delivery_goes_on_with_an_index_that_a_replay_has_filled(
    tmp_path: Path, search_url: str
) -> None:
    check_goes_on(lambda: Found(search_url), tmp_path / "archive")


class Found(SearchSink):
    """Finds what was written at once."""

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        self.engine.request("POST", f"/{plan.name}/_refresh")
        return super().documents(plan)


def check_goes_on(open_sink: Callable[[], Sink], archive: Path) -> None:
    plan = replace(PLAN, name="replayed")
    source = a_source(120, seed=5)
    records = numbered(source.topic)
    for start in range(0, len(records), 50):
        archived(archive, TOPIC, records[start : start + 50])
    compacted(archive)
    noted: list[ReplayState] = []
    part = len(records) * 3 // 4

    found = replay.replay(
        archive,
        [ReplayTarget((plan,), open_sink)],
        ReplayOptions(through={(TOPIC, 0): part}, note=noted.append),
    )

    assert {(TOPIC, 0): part} == found.ends
    assert [[]] == found.waiting
    # the stream goes on from a place before, and over what the replay has deleted
    assert [] == live(plan, records[part // 2 :], open_sink)
    assert source.rows == rows_of(plan, open_sink)
    carry_on(source, Random(3))  # noqa: S311
    assert [] == live(plan, numbered(source.topic)[len(records) :], open_sink)
    assert source.rows == rows_of(plan, open_sink)
    # a replay that comes over it again, from any part of it on, brings nothing old back
    for state in (None, noted[len(noted) // 2]):
        again = replay.replay(
            archive, [ReplayTarget((plan,), open_sink)], ReplayOptions(resume=state)
        )
        assert [[]] == again.waiting
        assert source.rows == rows_of(plan, open_sink)


def test_a_replayed_history_has_the_states_that_live_delivery_gives_it(tmp_path: Path) -> None:
    source, archive = a_source(60, seed=9), tmp_path / "archive"
    records = numbered(source.topic)
    archived(archive, TOPIC, records)
    replay.replay(archive, [ReplayTarget((HISTORY,), lambda: WarehouseSink(tmp_path / "replayed"))])

    WarehouseSink(tmp_path / "live").prepare(HISTORY)
    for start in range(0, len(records), 40):
        part = records[start : start + 40]
        live(HISTORY, part, lambda: WarehouseSink(tmp_path / "live"))

    states = []
    for folder in ("live", "replayed"):
        table = DeltaTable(tmp_path / folder / HISTORY.name).to_pyarrow_table()
        order = [("id", "ascending"), ("valid_from", "ascending"), ("recorded_from", "ascending")]
        states.append(table.sort_by(order).to_pylist())
    assert states[0] == states[1]
    assert states[0]
