"""Where a group begins, what a row of any age becomes, and what a parked record keeps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc import (
    ChangeEvent,
    ChangePosition,
    ConsumerRetryPolicy,
    GroupStart,
    Lsn,
    Operation,
    TableName,
)
from cdc.consumer import ConsumerSpec, ConsumerSpecError, changes
from cdc.consumer.errors import TableUndescribedError
from cdc.consumer.parking import (
    ParkedNotes,
    Request,
    forgotten_note,
    parked_note,
    request_note,
    restored,
    settled_note,
)
from cdc.consumer.partition_queue import ParkedRecord
from cdc.consumer.retry import ChangeFailure
from cdc.consumer.rows import RowDecoder
from cdc.consumer.start import CLOCKS_MS, locate
from cdc.errors import ValueDecodeError
from cdc.table import Column, ColumnKind, TableSchema

ORDERS = TableName("public", "orders")


@dataclass
class Log:
    """A partition in memory; None stands for a tombstone or a foreign record."""

    records: list[ChangeEvent | None]
    begin: int = 0

    @property
    def end(self) -> int:
        return self.begin + len(self.records)

    def at_time(self, time_ms: int) -> int:
        """Records are captured 5 ms after their commit."""
        for number, change in enumerate(self.records):
            if change is not None and change.committed_at_us // 1000 + 5 >= time_ms:
                return self.begin + number
        return self.end

    def streamed(self, offset: int, before: int) -> tuple[int, ChangeEvent] | None:
        for place in range(offset, before):
            change = self.records[place - self.begin]
            if change is not None and not change.snapshot:
                return place, change
        return None

    def committed_since(self, offset: int, time_us: int) -> int:
        for place in range(offset, self.end):
            change = self.records[place - self.begin]
            if change is not None and change.committed_at_us >= time_us:
                return place
        return self.end

    def from_(self, offset: int) -> list[ChangePosition]:
        kept = self.records[offset - self.begin :]
        return [change.position for change in kept if change is not None and not change.snapshot]


def change(position: ChangePosition, *, read: bool = False) -> ChangeEvent:
    operation = Operation.READ if read else Operation.CREATE
    at_us = position.lsn.value * 1_000_000
    return ChangeEvent(ORDERS, operation, {}, None, {}, position, 1, at_us, read)


@st.composite
def logs(draw: st.DrawFn) -> tuple[Log, list[tuple[int, list[ChangePosition]]]]:
    """A partition with reads and tombstones in between, and stretches that are repeated.

    Transactions interleave: one may write before another one commits.
    """
    transactions, lsn, before = [], 10, 5
    for epoch in range(1, draw(st.integers(1, 2)) + 1):
        for _ in range(draw(st.integers(0, 6))):
            own = lsn - draw(st.integers(0, 4))
            rows = [
                ChangePosition(epoch, Lsn(before), Lsn(own + n // 2), n + 1)
                for n in range(draw(st.integers(0, 3)))
            ]
            lsn = before = max(lsn, own + 3) + draw(st.integers(1, 5))
            transactions.append((lsn, rows))  # its commit
    streamed = [row for _, rows in transactions for row in rows]
    for _ in range(draw(st.integers(0, 2))):  # restarts: a stretch comes again
        if streamed:
            end = draw(st.integers(1, len(streamed)))
            again = draw(st.integers(0, end))
            streamed = streamed[:end] + streamed[again:]
    records: list[ChangeEvent | None] = []
    for position in streamed:
        for _ in range(draw(st.integers(0, 1))):
            read = change(ChangePosition.of_read(1, Lsn(7)), read=True)
            records.append(draw(st.sampled_from([read, None])))
        records.append(change(position))
    return Log(records, draw(st.integers(0, 100))), transactions


@given(logs(), st.data())
def test_after_a_position_everything_later_comes_and_what_is_just_before_is_not_later(
    found, data: st.DataObject
) -> None:
    log, transactions = found
    everything = [row for _, rows in transactions for row in rows]
    wanted = data.draw(
        st.sampled_from([*everything, ChangePosition.of_read(1, Lsn(7))]), label="wanted"
    )
    offset = locate(GroupStart.after(wanted), log)
    later = {position for position in log.from_(log.begin) if position > wanted}

    ordered = log.from_(log.begin)
    before = ordered[: len(ordered) - len(log.from_(offset))]

    assert later <= set(log.from_(offset))
    assert all(position <= wanted for position in before[-1:])
    assert all(position > wanted for position in log.from_(offset)[:1])


@given(logs(), st.data())
def test_after_an_lsn_every_transaction_committed_later_comes_whole(
    found, data: st.DataObject
) -> None:
    log, transactions = found
    near = [at + away for at, _ in transactions for away in (-1, 0, 1)]
    value = data.draw(st.sampled_from([0, *near]), label="lsn")
    epochs = {position.epoch for position in log.from_(log.begin)}
    newest = max(epochs, default=1)
    offset = locate(GroupStart.after(Lsn(value)), log)
    had = set(log.from_(offset))
    there = set(log.from_(log.begin))
    of_epoch = [(at, rows) for at, rows in transactions if rows and rows[0].epoch == newest]

    for commit, rows in of_epoch:
        if commit > value:
            assert there & set(rows) <= had
    unasked = [
        at for at, rows in of_epoch if at <= value and set(rows) & set(log.from_(offset)[:1])
    ]
    assert unasked in ([], [max((at for at, _ in of_epoch if at <= value), default=0)])


@given(logs(), st.integers(0, 80))
def test_from_a_time_on_every_change_committed_then_or_later_comes(found, second: int) -> None:
    log, _ = found
    start = GroupStart.at_time(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second))
    offset = locate(start, log)
    ordered = log.from_(log.begin)
    late = [position for position in ordered if position.lsn.value >= second]

    assert set(late) <= set(log.from_(offset))
    assert (log.begin, log.end) == (locate(GroupStart.BEGINNING, log), locate(GroupStart.END, log))
    assert log.at_time(3_000) == locate(GroupStart.END, log, began_ms=3_000)
    assert CLOCKS_MS > 0


def row(rows: RowDecoder, raw: dict[str, Any], lsn: int = 10) -> dict[str, object] | None:
    return rows.row(ORDERS, raw, ChangePosition(1, Lsn(1), Lsn(lsn), 1))


def test_a_row_is_decoded_with_the_columns_that_it_has() -> None:
    old = TableSchema(
        ORDERS,
        (
            Column("id", ColumnKind.INTEGER, "integer"),
            Column("total", ColumnKind.NUMERIC, "numeric"),
        ),
        ("id",),
    )
    paid = Column("paid", ColumnKind.BOOLEAN, "boolean")
    new = TableSchema(ORDERS, (*old.columns, paid), ("id",))
    looks: list[TableName] = []

    def describe_table(table: TableName, lsn: Lsn) -> tuple[TableSchema, Lsn]:
        looks.append(table)
        return new, Lsn(20)

    rows = RowDecoder({ORDERS: old}, describe_table)

    assert {"id": 1, "total": Decimal("2.50")} == row(rows, {"id": 1, "total": "2.50"})
    assert {"id": 1} == row(rows, {"id": 1})
    assert [] == looks
    assert {"id": 1, "total": None, "paid": True} == (
        row(rows, {"id": 1, "total": None, "paid": True})
    )
    for lsn in (10, 20):  # a column that is gone keeps the form in which it travelled
        assert {"total": Decimal(1), "gone": "3.10"} == (
            row(rows, {"total": "1", "gone": "3.10"}, lsn)
        )
    assert [ORDERS] == looks  # older records say nothing new
    row(rows, {"total": "1", "gone": "3.10"}, 21)
    assert [ORDERS, ORDERS] == looks
    assert {"a": "1.0"} == row(RowDecoder({}), {"a": "1.0"})


def test_a_value_that_does_not_fit_has_the_table_looked_at_again_and_keeps_its_form_if_it_is_old():
    def described(kind: ColumnKind, type_name: str) -> TableSchema:
        return TableSchema(ORDERS, (Column("n", kind, type_name),), ("n",))

    looks: list[TableName] = []
    answers: list[TableSchema | Exception] = [
        TableUndescribedError("away"),
        described(ColumnKind.NUMERIC, "numeric"),
        described(ColumnKind.NUMERIC, "numeric"),
        described(ColumnKind.TIMESTAMPTZ, "timestamptz"),
    ]

    def describe_table(table: TableName, lsn: Lsn) -> tuple[TableSchema, Lsn]:
        looks.append(table)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, Lsn(lsn.value + 5)

    rows = RowDecoder({ORDERS: described(ColumnKind.INTEGER, "integer")}, describe_table)

    with pytest.raises(TableUndescribedError):
        row(rows, {"n": "1.50"}, 10)
    assert {"n": Decimal("1.50")} == row(rows, {"n": "1.50"}, 10)  # asked again
    assert {"n": 5} == row(rows, {"n": 5}, 15)  # from before the last look
    assert {"n": 5} == row(rows, {"n": 5}, 16)
    assert 3 == len(looks)
    late = {"n": "2026-01-02 03:04:05+00"}
    assert {"n": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)} == row(rows, late, 30)
    for old in (7, True, "1.50", "31.12.2020", "2026-01-02", "2026-01-02 03:04:05", "03:04:05"):
        assert {"n": old} == row(rows, {"n": old}, 9)
    for beyond in ("infinity", "-infinity", "12026-01-01 00:00:00+00", "0044-03-15 00:00:00+00 BC"):
        with pytest.raises(ValueDecodeError):
            row(rows, {"n": beyond}, 9)
    assert [] == answers


def record_of(note: Any, offset: int) -> SimpleNamespace:
    key, value, headers = note
    return SimpleNamespace(key=key, value=value, headers=list(headers), offset=offset)


@given(
    key=st.none() | st.binary(max_size=9),
    value=st.binary(min_size=1, max_size=40),
    headers=st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3),
)
def test_a_parked_record_is_kept_byte_for_byte(key, value, headers) -> None:
    where = {"topic": "shop.public.orders", "partition": 3, "offset": 17, "timestamp": 5}
    record = SimpleNamespace(**where, key=key, value=value, headers=headers)
    failure = ChangeFailure("builtins.KeyError", "HW-C001", 4, permanent=True)
    note = record_of(parked_note(record, ParkedRecord(17, None, failure, 1_000)), 40)
    back = restored(note)
    notes = ParkedNotes()
    notes.take(note)
    place = ("shop.public.orders", 3)

    assert vars(record) | {"headers": tuple(headers)} == {
        name: getattr(back, name) for name in vars(record)
    }
    assert {key: [ParkedRecord(17, 40, failure, 1_000)]} == notes.shelf(place)
    assert (40, failure) == (notes.shelf(place)[key][0].at, notes.shelf(place)[key][0].failure)

    notes.take(record_of(request_note(place, Request(key, True, False, 17)), 41))
    assert {key: Request(key, True, False, 17, 41)} == notes.requests[place]
    notes.take(record_of(settled_note(place, key), 42))
    notes.take(record_of(forgotten_note(place, 17), 43))
    assert ({}, {}) == (notes.requests[place], notes.shelf(place))


def test_what_is_kept_of_an_error_has_no_values_in_it() -> None:
    failure = ChangeFailure.of(ValueError("4711"), 2, (ValueError,))

    assert ChangeFailure("builtins.ValueError", None, 2, permanent=True) == failure
    assert ChangeFailure("cdc.errors.ValueDecodeError", "HW-C002", 1, permanent=True) == (
        ChangeFailure.of(ValueDecodeError("x"), 1)
    )


def test_waits_grow_to_their_limit_and_end_after_the_last_attempt() -> None:
    policy = ConsumerRetryPolicy(attempts_max=5, wait_initial_s=1, wait_max_s=3, jitter=0)
    waits = [ChangeFailure("E", None, attempts, False).wait_s(policy) for attempts in range(1, 6)]

    assert [1, 2, 3, 3, None] == waits
    assert ChangeFailure("E", None, 1, permanent=True).wait_s(policy) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": "no blanks"},
        {"group": ""},
        {"tables": ()},
        {"records_held_max": 0},
        {"session_timeout_s": 1.0},
        {"source": "s" * 200, "group": "g" * 90},
    ],
    ids=str,
)
def test_a_consumer_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    right = {"kafka_bootstrap": "k:1", "source": "shop", "group": "g", "tables": (ORDERS,)}
    ConsumerSpec(**right)

    with pytest.raises(ConsumerSpecError):
        ConsumerSpec(**(right | wrong))


@pytest.mark.parametrize(
    "options",
    [
        {"group": "g", "source": "shop", "tables": ["orders"]},
        {"group": "g", "source": "shop", "tables": ["orders"], "dsn": "d", "schemas": {}},
        {"group": "g", "schemas": {}},
    ],
    ids=["untyped", "twice typed", "nothing to read"],
)
def test_a_consumer_says_what_it_reads_and_by_which_types(options: dict[str, Any]) -> None:
    with pytest.raises(ConsumerSpecError):
        changes("nowhere:1", **options)


def test_a_start_time_needs_a_zone() -> None:
    with pytest.raises(ConsumerSpecError):
        GroupStart.at_time(datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_change_shows_where_it_is_and_nothing_of_what_is_in_it() -> None:
    from cdc import Change

    shown = repr(
        Change(
            table=ORDERS,
            operation=Operation.CREATE,
            key={"id": 4711},
            before=None,
            after={"id": 4711},
            position=ChangePosition.of_read(1, Lsn(1)),
            transaction_id=1,
            committed_at=datetime.now(UTC),
            snapshot=False,
            topic="shop.public.orders",
            partition=0,
            offset=3,
            attempt=1,
            parked=False,
        )
    )

    assert "<Change CREATE public.orders at shop.public.orders/0@3>" == shown
    assert orjson.dumps({"shown": shown})
