"""When a row was changed: at the source, at the broker, and here; whichever a view asks for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from cdc.table import Column, ColumnKind, TableSchema
from eventstore.serialization.registry import EventTypes
from projections.changes.applier import TaskApplier
from projections.changes.record import Record
from projections.changes.task_outcome import BlockedKeys
from projections.definition import codec
from projections.definition.diff import DefinitionChangeKind, difference
from projections.definition.event_rows import ENVELOPE, KEY
from projections.definition.mirror import events, mirror, source
from projections.definition.views import (
    EVENT_TABLES,
    EVENTS,
    ChangeTime,
    EventsRef,
    EventsView,
    Store,
)
from projections.errors import DeclarationError, PlanError
from projections.planning.view_plan import plan_views
from projections.stores.delta.table_sink import TableSink
from tests.fix_log import PLAN, TOPIC, Source, envelope, numbered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from projections.planning.view_plan import ViewPlan

pytestmark = pytest.mark.integration

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = (
    ("committed_at", ChangeTime.COMMIT),
    ("received_at", ChangeTime.BROKER),
    ("applied_at", ChangeTime.PROCESSING),
)
TIMED = replace(PLAN, to=frozenset([Store.TABLE]), times=TIMES)


def after(microseconds: int) -> datetime:
    return BEGINNING + timedelta(microseconds=microseconds)


def sent(records: Iterable[Record], first: int = 5_000_000) -> list[Record]:
    """Records as a topic has them, each sent a second after the one before."""
    return [
        record._replace(sent_at_us=first + 1_000_000 * number)
        for number, record in enumerate(numbered([*records]))
    ]


def kept(root: Path, plan: ViewPlan, records: list[Record]) -> dict[int, Mapping[str, Any]]:
    """What a table has once it was given records."""
    delivery = TaskApplier([plan], lambda: TableSink(root), {plan.name: BlockedKeys()})
    TableSink(root).prepare(plan)
    delivery.take(TOPIC, records)
    delivery.finish()
    rows = DeltaTable(str(root / plan.name)).to_pyarrow_table().to_pylist()
    return {row["id"]: row for row in rows}


def test_a_row_has_the_times_of_its_last_change(tmp_path: Path) -> None:
    log = Source()
    log.together([[("insert", 1), ("insert", 2)], [("insert", 3)]], Random(1))  # noqa: S311
    log.together([[("note", 1), ("delete", 2)]], Random(1))  # noqa: S311  # large values stay
    records = sent(log.topic)
    before = datetime.now(UTC)

    rows = kept(tmp_path, TIMED, records)

    last = {number: record for record in records for number in (1, 3) if _key(record) == number}
    assert [1, 3] == sorted(rows)
    for number, record in last.items():
        row = rows[number]
        assert after(1000 + _lsn(record)) == row["committed_at"]
        assert after(record.sent_at_us) == row["received_at"]
        assert before <= row["applied_at"] <= datetime.now(UTC)
    assert rows[1]["big"] is not None


def test_a_row_that_was_read_was_sent_and_nobody_knows_when_it_was_committed(
    tmp_path: Path,
) -> None:
    log = Source()
    log.together([[("insert", 1)]], Random(1))  # noqa: S311  # an order of its own

    (row,) = kept(tmp_path, TIMED, sent(log.read(-1, -1))).values()

    assert row["committed_at"] is None
    assert after(5_000_000) == row["received_at"]


def test_what_comes_twice_or_late_leaves_the_times_of_the_newest_change(tmp_path: Path) -> None:
    log = Source(whole_rows=True)
    log.together([[("insert", 1)]], Random(1))  # noqa: S311  # an order of its own
    log.together([[("note", 1)]], Random(1))  # noqa: S311
    first, second = sent(log.topic)

    newest = kept(tmp_path, TIMED, [first, second])
    again = kept(tmp_path, TIMED, [second, first, first])

    assert newest == again


def test_a_view_without_times_has_the_columns_that_it_had(tmp_path: Path) -> None:
    log = Source()
    log.together([[("insert", 1)]], Random(1))  # noqa: S311  # an order of its own

    (row,) = kept(tmp_path, replace(TIMED, times=()), sent(log.topic)).values()

    assert {"id", "note", "big", "_version"} == row.keys()


def test_an_event_has_the_times_at_which_it_first_came_whatever_moves_it_in_whatever_order(
    tmp_path: Path,
) -> None:
    (plan,) = plan_views([noted()], dict.fromkeys(EVENT_TABLES, EVENT_TABLE))
    log, archived = (table.topic("shop") for table in EVENT_TABLES)
    came = [(log, 100, "c"), (log, 300, "r"), (archived, 400, "c"), (archived, 600, "r")]
    for number, order in enumerate(permutations(came, 3)):
        root, written = tmp_path / str(number), []
        TableSink(root).prepare(plan)
        delivery = TaskApplier([plan], partial(TableSink, root), {plan.name: BlockedKeys()})
        for topic, lsn, op in order:
            delivery.take(topic, [stored_event(op, lsn)])
            delivery.finish()
            written.append(datetime.now(UTC))
        (row,) = DeltaTable(str(root / plan.name)).to_pyarrow_table().to_pylist()

        known = (log, 100, "c") in order
        assert (after(1100) if known else None) == row["committed_at"]
        assert after(min(lsn for _, lsn, _ in order)) == row["received_at"]
        assert row["applied_at"] < written[0]
        assert '{"text":"søster"}' == row["data"]


def test_a_deleted_event_comes_back_by_nothing_that_is_older(tmp_path: Path) -> None:
    (plan,) = plan_views([noted()], dict.fromkeys(EVENT_TABLES, EVENT_TABLE))
    log, archived = (table.topic("shop") for table in EVENT_TABLES)
    for number, order in enumerate(permutations([(log, 100, "c"), (archived, 400, "c")])):
        root = tmp_path / str(number)
        TableSink(root).prepare(plan)
        delivery = TaskApplier([plan], partial(TableSink, root), {plan.name: BlockedKeys()})
        for topic, lsn, op in (order[0], (archived, 600, "d"), order[1]):
            delivery.take(topic, [stored_event(op, lsn)])
            delivery.finish()

        assert 0 == DeltaTable(str(root / plan.name)).to_pyarrow_table().num_rows


def noted() -> EventsView:
    types = EventTypes()
    types.untyped("order.noted")
    ref = EventsRef("shop", ("order.noted",), types)
    return EventsView("noted", "shop", ref, frozenset([Store.TABLE]), times=TIMES)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"times": {"at": "arrival"}}, "unknown time arrival"),
        ({"times": {"at": "commit"}, "to": ["cache"]}, "times needs a mirror"),
        ({"times": {"at": "commit"}, "scd": 2}, "times needs a mirror"),
        ({"times": {"At": "commit"}}, "column name"),
    ],
)
def test_times_that_a_view_cannot_have_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        mirror("things", source("shop", tables=["public.things"]).things, **options)


def test_a_view_of_events_has_times_in_its_table_only_and_none_that_there_is_not() -> None:
    every = source("shop", tables=[], eventstore=True).events("order.noted", registry=EventTypes())

    with pytest.raises(DeclarationError, match="times needs a mirror"):
        events("noted", every, to=["cache"], times={"at": "broker"})
    with pytest.raises(DeclarationError, match="unknown time arrival"):
        events("noted", every, times={"at": "arrival"})


def test_a_time_may_not_have_the_name_of_a_column() -> None:
    table = source("shop", tables=["public.things"]).things
    view = mirror("things", table, times={"note": "commit"})

    with pytest.raises(PlanError, match="have a column note"):
        plan_views([view], {view.table: PLAN.schema})


def test_a_time_of_an_event_may_not_have_the_name_of_a_field() -> None:
    view = replace(noted(), times=(("recorded_at", ChangeTime.COMMIT),))

    with pytest.raises(PlanError, match="have a column recorded_at"):
        plan_views([view], dict.fromkeys(EVENT_TABLES, EVENT_TABLE))


def test_a_view_of_events_without_times_is_the_one_that_it_was() -> None:
    plain = replace(noted(), times=())
    kept = codec.encoded(plain)
    del kept["times"]  # as earlier versions have written it

    assert codec.decoded(kept) == codec.decoded(codec.encoded(plain))
    assert "a0196204a929b1a5" == codec.digest(plain)  # as earlier versions noted it
    assert codec.digest(plain) != codec.digest(noted())
    change = difference(plain, noted(), gone=lambda _: False)
    assert (DefinitionChangeKind.REBUILD, {name for name, _ in TIMES}) == (
        change.kind,
        change.columns,
    )


def test_another_time_asks_for_another_version_of_the_view() -> None:
    plain = mirror("things", source("shop", tables=["public.things"]).things)
    timed = replace(plain, times=TIMES)

    change = difference(plain, timed, gone=lambda _: False)

    assert (DefinitionChangeKind.REBUILD, {name for name, _ in TIMES}) == (
        change.kind,
        change.columns,
    )
    assert timed == codec.decoded(codec.encoded(timed))


EVENT_TABLE = TableSchema(
    EVENTS,
    (
        *ENVELOPE,
        Column("schema_version", ColumnKind.INTEGER, "smallint", nullable=False),
        Column("data", ColumnKind.JSON, "json", nullable=False),
    ),
    (KEY,),
)


def stored_event(op: str, lsn: int) -> Record:
    """What a topic of the store has of one event, sent at the microsecond of its position."""
    row = dict.fromkeys(EVENT_TABLE.by_name) | {
        "global_position": 7,
        "tenant": "acme",
        "stream": "order-1",
        "stream_position": 1,
        "type": "order.noted",
        "schema_version": 1,
        "event_id": "0191d0a0-0000-7000-8000-000000000001",
        "data": '{"text":"søster"}',
        "occurred_at": "2026-01-01T00:00:00Z",
        "recorded_at": "2026-01-01T00:00:00Z",
    }
    value = envelope(op, lsn, None if op == "d" else row)
    return Record(b'{"global_position":7}', value, "1", 0, 0)._replace(sent_at_us=lsn)


def _key(record: Record) -> int:
    return int((record.key or b"").decode().split(":")[1].rstrip("}"))


def _lsn(record: Record) -> int:
    value = (record.value or b"").decode()
    return int(value.split('"lsn":')[1].split("}")[0])
