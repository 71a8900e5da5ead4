from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.broker.reading.heartbeats import Heartbeat
from cdc.broker.topics.incarnation import Incarnation
from cdc.continuity import errors
from cdc.continuity.evidence import BY_CODE, Evidence, judge
from cdc.continuity.heartbeat_sequence import follow
from cdc.lsn import Lsn
from cdc.postgres.captures import Capture
from cdc.postgres.server import Server
from cdc.postgres.slot import SlotStatus

SERVER = Server(system_id=7, timeline=1, standby=False, end_lsn=Lsn(1000))
SLOT = SlotStatus("headwater_shop", False, None, "shop", "pgoutput", Lsn(400), Lsn(500), "ok", 0)
TOPICS = {"shop.public.orders": Incarnation("a", (10, 20))}
CAPTURE = Capture("shop", 1, SLOT.name, Lsn(300), 7, 1, captured_lsn=Lsn(450), topics=TOPICS)
WHOLE = Evidence(SERVER, CAPTURE, SLOT, True, Lsn(600), 9, 9, TOPICS, 1)


def seen(**changed: Any) -> Evidence:
    return replace(WHOLE, **changed)


def slot(**changed: Any) -> SlotStatus:
    return replace(SLOT, **changed)


@pytest.mark.parametrize(
    "evidence",
    [
        WHOLE,
        seen(capture=None, reached=None),  # nothing is captured yet
        seen(slot=slot(confirmed_flush_lsn=Lsn(600))),  # all confirmed
        seen(  # made just now
            capture=replace(CAPTURE, captured_lsn=None),
            slot=slot(confirmed_flush_lsn=Lsn(300)),
            reached=None,
            stored=False,
        ),
        seen(topics={"shop.public.orders": Incarnation("a", (11, 20, 4))}),
        seen(beat_written=12),  # on its way
        seen(server=replace(SERVER, timeline=2), slot=slot(synced=True), left_at=Lsn(600)),
    ],
)
def test_what_is_whole_goes_on(evidence):
    assert judge(evidence) is None


LOSSES = [
    (errors.OtherServerError, seen(capture=None)),
    (errors.OtherServerError, seen(server=replace(SERVER, system_id=8))),
    (errors.SourceRestoredError, seen(server=replace(SERVER, end_lsn=Lsn(599)))),
    (errors.SourceRestoredError, seen(reached=None, server=replace(SERVER, end_lsn=Lsn(449)))),
    (errors.SourceRestoredError, seen(beat_arrived=10)),
    (errors.SourceRestoredError, seen(registered_epoch=2)),
    (errors.SourceRestoredError, seen(server=replace(SERVER, timeline=2), left_at=Lsn(599))),
    (errors.SourceRestoredError, seen(server=replace(SERVER, timeline=2), left_at=None)),
    (errors.SourceRestoredError, seen(capture=replace(CAPTURE, timeline=2))),
    (errors.TopicsRecreatedError, seen(topics={})),
    (errors.TopicsRecreatedError, seen(topics={"shop.public.orders": Incarnation("b", (99, 99))})),
    (errors.TopicsRecreatedError, seen(topics={"shop.public.orders": Incarnation("a", (9, 20))})),
    (errors.TopicsRecreatedError, seen(topics={"shop.public.orders": Incarnation("a", (10,))})),
    (errors.SlotDroppedError, seen(slot=None)),
    (errors.SlotDroppedError, seen(slot=None, reached=None, stored=False)),
    (
        errors.FailoverWithoutSlotError,
        seen(slot=None, server=replace(SERVER, timeline=2), left_at=Lsn(900)),
    ),
    (errors.SlotInvalidatedError, seen(slot=slot(wal_status="lost"))),
    (errors.SlotInvalidatedError, seen(slot=slot(invalidation="idle_timeout"))),
    (errors.OffsetsGoneError, seen(reached=None, stored=False)),
    (
        errors.SlotRecreatedError,
        seen(slot=slot(restart_lsn=Lsn(600), confirmed_flush_lsn=Lsn(601))),
    ),
    (errors.SlotMovedError, seen(slot=slot(confirmed_flush_lsn=Lsn(601)))),
    (
        errors.SlotMovedError,
        seen(slot=slot(restart_lsn=Lsn(600), confirmed_flush_lsn=Lsn(601), decoded_transactions=5)),
    ),
    (
        errors.SlotRecreatedError,  # before anything was captured from it
        seen(
            capture=replace(CAPTURE, captured_lsn=None),
            reached=None,
            beat_arrived=None,
            slot=slot(restart_lsn=Lsn(400), confirmed_flush_lsn=Lsn(401)),
        ),
    ),
    (errors.RepairUnfinishedError, seen(capture=replace(CAPTURE, repairing=2))),
    (errors.BeatMissingError, seen(capture=replace(CAPTURE, lost="HW-C079"))),
]


@pytest.mark.parametrize(("kind", "evidence"), LOSSES)
def test_what_is_not_whole_has_its_own_code_and_the_command_that_repairs_it(kind, evidence):
    loss = judge(evidence)

    assert loss is not None
    assert kind is loss.kind
    assert "headwater source repair --yes" == loss.error().hint
    assert kind is BY_CODE[loss.code]


def test_every_code_is_found():
    assert set(BY_CODE.values()) == {kind for kind, _ in LOSSES}


def test_what_was_noted_is_said_again_whatever_has_become_of_the_evidence():
    noted = replace(CAPTURE, lost="HW-C073", lost_detail="somebody moved the slot: by a mile")

    loss = judge(seen(capture=noted))

    assert loss is not None
    assert ("HW-C073", "somebody moved the slot: by a mile") == (loss.code, loss.message)


def beats(numbers: list[int]) -> list[Heartbeat]:
    return [Heartbeat(number, Lsn(number * 10), 1, offset) for offset, number in enumerate(numbers)]


@given(st.integers(1, 50), st.integers(1, 40), st.data())
def test_heartbeats_that_are_sent_again_are_no_gap(first, count, data):
    numbers: list[int] = []
    for number in range(first, first + count):
        numbers.append(number)
        if data.draw(st.booleans()):  # killed: it goes on some heartbeats before
            back = data.draw(st.integers(first, number))
            numbers += range(back, number + 1)

    newest, missing = follow(first - 1, Lsn(first * 10 - 10), beats(numbers))

    assert missing is None
    assert newest is not None
    assert first + count - 1 == newest.number


@given(st.integers(2, 40), st.data())
def test_a_heartbeat_that_is_missing_shows(count, data):
    gone = data.draw(st.integers(1, count - 1))
    found = beats([number for number in range(1, count + 1) if number != gone])

    newest, missing = follow(0, Lsn(0), found)

    assert missing is not None
    assert gone - 1 == (newest.number if newest else 0)
    assert f"heartbeat {gone + 1} at" in missing


def test_numbers_that_go_back_while_the_log_goes_on_show():
    again = Heartbeat(3, Lsn(60), 1, 9)

    _, missing = follow(None, None, [*beats([3, 4, 5]), again])

    assert missing == "heartbeat 3 came at 0/3C, 5 at 0/32 before"
