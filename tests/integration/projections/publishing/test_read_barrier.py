"""Tokens of what was committed, and waiting for a view that has it; the job is played here."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.errors import (
    NotCapturedError,
    TokenForeignError,
    TokenFutureError,
    TokenOutdatedError,
    TransactionAbortedError,
    TransactionOpenError,
)
from cdc.lsn import Lsn
from cdc.position_token import PositionToken
from cdc.postgres import captures, committed, own_schema
from cdc.postgres.captures import Capture
from projections.definition.views import Store
from projections.publishing import positions, read_barrier
from projections.publishing.read_barrier import (
    BehindError,
    ChangeStage,
    Lateness,
    ReadBarrier,
    SourcePositions,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

EVERYWHERE = frozenset(Store)
ORDERS = ReadBarrier("shop", "orders", EVERYWHERE)
TOTALS = ReadBarrier("shop", "totals", EVERYWHERE, ("orders", "payments"))
SLOT = "headwater_barrier"


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        own_schema.ensure(connection)
        connection.execute("CREATE TABLE things (id bigint)")
        capture(connection)
        yield connection


def capture(connection: psycopg.Connection[Any], epoch: int = 1) -> None:
    row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    made_at = Lsn.parse(row[0])
    captures.record(connection, Capture("shop", epoch, SLOT, made_at, 7, 1))


def applied(connection: psycopg.Connection[Any], lsn: Lsn, *places: tuple[str, Store]) -> None:
    positions.publish(connection, "shop", places, lsn)


def pause(connection: psycopg.Connection[Any], view: str) -> None:
    connection.execute(
        "INSERT INTO headwater.view_shapes"
        " (view, source, table_oid, tables, change_id, shape_id, columns, paused)"
        " VALUES (%s, 'shop', 1, '[]', 1, 1, '{}', '{\"code\": \"HW-P051\"}')",
        (view,),
    )


def number_of(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    return int(row[0])


def test_a_token_is_after_the_commit_of_whoever_asks_for_it(
    source: psycopg.Connection[Any], database: str
) -> None:
    """The log itself says where each transaction was committed."""
    source.execute("CREATE PUBLICATION barrier FOR TABLE things")
    source.execute("SELECT pg_create_logical_replication_slot('barrier', 'pgoutput')")
    tokens: dict[int, list[Lsn]] = {}

    def write(by_number: bool) -> None:
        with (
            psycopg.connect(database) as own,
            psycopg.connect(database, autocommit=True) as beside,
        ):
            for each in range(40):
                number = number_of(own)
                own.execute("INSERT INTO things VALUES (%s)", (each,))
                own.commit()
                token = (
                    committed.of_transaction(beside, "shop", number)
                    if by_number
                    else committed.everything(own, "shop")
                )
                tokens[number] = [token.lsn]

    writers = [threading.Thread(target=write, args=(kind,)) for kind in (True, False, True)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)

    read = (
        "SELECT xid::text, max(lsn)::text FROM pg_logical_slot_peek_binary_changes("
        "'barrier', NULL, NULL, 'proto_version', '1', 'publication_names', 'barrier')"
        " GROUP BY 1"
    )
    ends = {int(number): Lsn.parse(end) for number, end in source.execute(read).fetchall()}
    source.execute("SELECT pg_drop_replication_slot('barrier')")
    assert 120 == len(tokens)
    found = [(ends[number & 0xFFFFFFFF], lsn) for number, (lsn,) in tokens.items()]
    assert all(end <= lsn for end, lsn in found)


def test_a_transaction_has_no_token_before_its_commit(
    source: psycopg.Connection[Any], database: str
) -> None:
    with psycopg.connect(database) as own:
        number = number_of(own)
        with pytest.raises(TransactionOpenError):
            committed.everything(own, "shop")
        with pytest.raises(TransactionOpenError) as refused:
            committed.of_transaction(source, "shop", number)
        assert refused.value.retriable
        own.rollback()

    with pytest.raises(TransactionAbortedError):
        committed.of_transaction(source, "shop", number)
    with pytest.raises(TransactionAbortedError):
        committed.of_transaction(source, "shop", number + 10**6)


def test_asking_for_a_token_leaves_no_transaction_open(
    source: psycopg.Connection[Any], database: str
) -> None:
    with psycopg.connect(database) as own:
        committed.everything(own, "shop")

        assert psycopg.pq.TransactionStatus.IDLE == own.info.transaction_status
        with pytest.raises(NotCapturedError):
            committed.everything(own, "another")
        assert psycopg.pq.TransactionStatus.IDLE == own.info.transaction_status
    del source


def test_a_token_of_another_source_or_time_is_refused(source: psycopg.Connection[Any]) -> None:
    token = committed.everything(source, "shop")
    beyond = PositionToken("shop", 1, Lsn(token.lsn.value + 2**40))
    cases = [
        (PositionToken("store", 1, token.lsn), TokenForeignError),
        (beyond, TokenFutureError),
        (PositionToken("shop", 2, token.lsn), TokenFutureError),
    ]
    for refused, error in cases:
        with pytest.raises(error):
            ORDERS.wait(source, refused, timeout_s=0)

    capture(source, epoch=2)
    with pytest.raises(TokenOutdatedError):
        ORDERS.wait(source, token, timeout_s=0)


def test_a_repair_while_somebody_waits_ends_the_wait(source: psycopg.Connection[Any]) -> None:
    token = committed.everything(source, "shop")
    repaired = threading.Timer(0.2, capture, (source,), {"epoch": 2})
    with psycopg.connect(source.info.dsn, password=source.info.password) as beside:
        beside.autocommit = True
        repaired.start()
        with pytest.raises(TokenOutdatedError):
            ORDERS.wait(beside, token, timeout_s=60)
    repaired.join()


def test_a_view_that_has_it_is_not_waited_for(source: psycopg.Connection[Any]) -> None:
    token = committed.everything(source, "shop")
    with pytest.raises(BehindError) as behind:
        ORDERS.wait(source, token, timeout_s=0)
    assert sorted(Store) == [each.store for each in behind.value.late]

    applied(source, token.lsn, *(("orders", store) for store in Store))
    ORDERS.wait(source, token, timeout_s=0)


def test_each_store_is_waited_for_unless_some_are_named(source: psycopg.Connection[Any]) -> None:
    token = committed.everything(source, "shop")
    applied(source, token.lsn, ("orders", Store.CACHE))

    ORDERS.wait(source, token, stores={Store.CACHE}, timeout_s=0)
    with pytest.raises(BehindError) as behind:
        ORDERS.wait(source, token, timeout_s=0)

    assert [Store.SEARCH, Store.TABLE] == [each.store for each in behind.value.late]


def test_a_wait_ends_when_the_view_comes_there(source: psycopg.Connection[Any]) -> None:
    token = committed.everything(source, "shop")
    before = Lsn(token.lsn.value - 1)
    applied(source, before, ("orders", Store.CACHE))
    ended = threading.Event()

    def wait() -> None:
        with psycopg.connect(
            source.info.dsn,
            password=source.info.password,
            autocommit=True,
            application_name="waiting",
        ) as beside:
            ORDERS.wait(beside, token, stores={Store.CACHE}, timeout_s=60)
        ended.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    asked: set[Any] = set()

    def looks() -> int:
        started = "SELECT query_start FROM pg_stat_activity WHERE application_name = 'waiting'"
        asked.update(source.execute(started).fetchall())
        return len(asked)

    wait_until(looks, "several looks at the view", accept=lambda count: count > 8, pause_s=0.005)
    assert not ended.is_set()
    applied(source, token.lsn, ("orders", Store.CACHE))
    waiting.join(60)

    assert ended.is_set()


def behind(barrier: ReadBarrier, source: psycopg.Connection[Any], token: PositionToken) -> Lateness:
    with pytest.raises(BehindError) as late:
        barrier.wait(source, token, stores={Store.CACHE}, timeout_s=0)
    assert "HW-P033" == late.value.code
    assert late.value.retriable
    assert str(late.value.late[0]) == late.value.detail
    return late.value.late[0]


def test_who_is_behind_is_told_with_the_stage_and_by_how_much(
    source: psycopg.Connection[Any],
) -> None:
    """A change on its way through every stage, to a view that is made from two others."""
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    source.execute("INSERT INTO things VALUES (1)")
    token = committed.everything(source, "shop")

    unread = behind(TOTALS, source, token)
    assert (ChangeStage.CAPTURE, None) == (unread.stage, unread.applied_through)
    assert "no connector reads the log" in unread.cause

    source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (SLOT,))
    source.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
    assert f"there is no slot {SLOT}" == behind(TOTALS, source, token).cause
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    assert ChangeStage.BATCH == behind(TOTALS, source, token).stage

    applied(source, token.lsn, ("orders", Store.TABLE))
    half = behind(TOTALS, source, token)
    assert (ChangeStage.BATCH, "payments not there either") == (half.stage, half.cause)

    applied(source, token.lsn, ("payments", Store.TABLE))
    assert ChangeStage.DERIVATION == behind(TOTALS, source, token).stage

    applied(source, token.lsn, ("totals", Store.TABLE))
    applied(source, Lsn(token.lsn.value - 100), ("totals", Store.CACHE))
    last = behind(TOTALS, source, token)
    assert (ChangeStage.DELIVERY, 100) == (last.stage, last.behind_bytes)
    assert last.still_s is not None
    assert 0 <= last.still_s < 60
    assert str(last).startswith("totals in cache: delivery, 100 bytes of the log behind, its")

    applied(source, token.lsn, ("totals", Store.CACHE))
    TOTALS.wait(source, token, timeout_s=0, stores={Store.CACHE})
    source.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))


def test_a_paused_view_and_a_lost_capture_are_told(source: psycopg.Connection[Any]) -> None:
    token = committed.everything(source, "shop")
    pause(source, "payments")
    paused = behind(TOTALS, source, token)
    assert (ChangeStage.PAUSED, "HW-P051") == (paused.stage, paused.cause)

    source.execute("UPDATE headwater.captures SET lost = 'HW-C062'")
    lost = behind(ORDERS, source, token)
    assert (ChangeStage.CAPTURE, "the capture has lost changes, HW-C062") == (
        lost.stage,
        lost.cause,
    )


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_lag_is_told_of_each_store_and_of_who_is_behind(
    source: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = committed.everything(source, "shop")
    before = Lsn(token.lsn.value - 10)
    tables = [("orders", Store.TABLE), ("payments", Store.TABLE)]
    applied(source, token.lsn, *tables, ("orders", Store.CACHE), ("totals", Store.TABLE))
    applied(source, before, ("orders", Store.SEARCH), ("totals", Store.CACHE))
    looks: list[SourcePositions] = []
    look_once = read_barrier.look
    clock = Clock()
    monkeypatch.setattr(read_barrier, "time", clock)

    def look(*given: Any) -> SourcePositions:
        if len(looks) == 1:  # search comes there between two looks
            applied(source, token.lsn, ("orders", Store.SEARCH))
        looks.append(look_once(*given))
        return looks[-1]

    monkeypatch.setattr(read_barrier, "look", look)
    found = {
        (each.view, each.store): each
        for each in read_barrier.measure(source, token, (ORDERS, TOTALS), timeout_s=1.0)
    }

    stages = {place: each.late.stage for place, each in found.items() if each.late is not None}
    assert dict.fromkeys(
        (("totals", Store.CACHE), ("totals", Store.SEARCH)), ChangeStage.DELIVERY
    ) == (stages)
    assert [True] * 2 == [found[place].seconds is None for place in stages]
    late = found["totals", Store.CACHE].late
    assert late is not None
    assert 10 == late.behind_bytes
    there = {place: each.seconds for place, each in found.items() if each.seconds is not None}
    slowest_s = there.pop(("orders", Store.SEARCH))
    assert [0.0] * 3 == [*there.values()]
    assert read_barrier.POLL_S == slowest_s
    assert clock.now >= 1.0


@pytest.mark.timeout(60)
def test_lag_does_not_wait_for_what_waits_for_somebody(source: psycopg.Connection[Any]) -> None:
    token = committed.everything(source, "shop")
    applied(source, Lsn(token.lsn.value - 1), *(("orders", store) for store in Store))
    pause(source, "orders")

    found = read_barrier.measure(
        source, token, (ORDERS,), timeout_s=90.0
    )  # more than the test may take

    assert {ChangeStage.PAUSED} == {each.late.stage for each in found if each.late is not None}
    assert 3 == len(found)


def test_a_view_over_several_sources_is_waited_for_in_each_of_them(
    source: psycopg.Connection[Any],
) -> None:
    token = committed.everything(source, "shop")
    both = ReadBarrier("shop", "both", frozenset({Store.TABLE}), ("orders",))
    applied(source, token.lsn, ("orders", Store.TABLE))
    with pytest.raises(BehindError) as behind:
        both.wait(source, token, timeout_s=0.1)
    places = {("both", Store.TABLE): token.lsn, ("both", Store.CACHE): token.lsn}
    positions.publish_readers(source, "shop", places, {"both": "billing"})
    both.wait(source, token, timeout_s=0)
    positions.publish_readers(
        source, "shop", {("both", Store.TABLE): token.lsn}, {"both": "billing"}
    )

    assert [ChangeStage.DERIVATION] == [late.stage for late in behind.value.late]
    assert [("both", "table", "shop/billing"), ("orders", "table", "shop")] == [
        (each.view, str(each.store), each.source) for each in positions.read(source)
    ]


def test_a_view_that_its_source_maintains_by_now_begins_with_a_position_of_its_own(
    source: psycopg.Connection[Any],
) -> None:
    places = {("both", Store.TABLE): Lsn(1 << 40)}
    positions.publish_readers(source, "shop", places, {"both": "billing"})
    applied(source, Lsn(7), ("both", Store.TABLE))

    assert [("shop", Lsn(7))] == [(p.source, p.applied_through) for p in positions.read(source)]
