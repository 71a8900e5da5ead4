"""The times of an event are the earliest of its records, however these come in batches."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from projections.changes.applier import TaskApplier
from projections.definition.views import ChangeTime
from projections.stores.delta.table_sink import TableSink
from tests.fix_seeds import examples
from tests.support.event_logs import LIVE, PLAN, event, logs, record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from projections.changes.record import Record

TIMED = replace(PLAN, times=(("told_at", ChangeTime.COMMIT), ("sent_at", ChangeTime.BROKER)))


def delivered(folder: Path, batches: Iterable[Iterable[tuple[str, Record]]]) -> list[Any]:
    """The rows of a table that some batches of records were delivered to."""
    sink = TableSink(folder)
    sink.prepare(TIMED)
    for batch in batches:
        delivery = TaskApplier([TIMED], lambda: sink)
        for topic, each in batch:
            delivery.take(topic, [each])
        delivery.finish()
    rows = list(sink._table(TIMED.name).to_pyarrow_table().to_pylist())
    return sorted(rows, key=lambda row: row["global_position"])


def test_a_snapshot_in_the_batch_of_an_insert_keeps_its_times(tmp_path: Path) -> None:
    row = event(1, "order.placed")
    insert = record("c", 0x1000, row)._replace(offset=0, sent_at_us=7)
    read = record("r", 0x1008, row)._replace(offset=1, sent_at_us=9)

    (found,) = delivered(tmp_path / "one", [[(LIVE, insert), (LIVE, read)]])

    assert (1000 + 0x1000, 7) == tuple(_us(found[name]) for name in ("told_at", "sent_at"))
    assert 1 << 56 | 0x1008 == found["_version"]


@settings(max_examples=examples(40), deadline=None)
@given(log=logs(spoilt=False), data=st.data())
def test_an_event_has_the_same_times_in_every_order_and_every_batch(
    log: dict[str, list[Record]], data: st.DataObject
) -> None:
    records = [
        (topic, each._replace(sent_at_us=data.draw(st.integers(1, 99))))
        for topic, own in log.items()
        for each in own
    ]
    mixed = data.draw(st.permutations(records))
    with tempfile.TemporaryDirectory() as place:
        single = delivered(Path(place) / "single", [[each] for each in records])
        whole = delivered(Path(place) / "whole", [mixed])

    assert single == whole


def _us(time: Any) -> int:
    return round(time.timestamp() * 1_000_000)
