"""A paused group: what its notes mean, and what a member hands out meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

import orjson

from cdc import TableName
from cdc.consumer import ConsumerSpec
from cdc.consumer.dispatcher import Dispatcher
from cdc.consumer.parking import GroupPause, ParkedNotes, idle_note, pause_note

PLACE = ("shop.public.orders", 0)
OTHER = ("shop.public.orders", 1)
SPEC = ConsumerSpec(
    kafka_bootstrap="kafka:1",
    source="shop",
    group="mail",
    tables=(TableName("public", "orders"),),
)


def record(offset: int, key: bytes = b'{"id":1}'):
    return SimpleNamespace(offset=offset, key=key, value=b"{}")


def taking(*notes):
    taken = ParkedNotes()
    for offset, (key, value, headers) in enumerate(notes):
        taken.take(SimpleNamespace(key=key, value=value, headers=headers, offset=offset))
    return taken


def test_the_last_note_says_whether_a_group_is_paused():
    assert taking(pause_note(5)).pause == GroupPause(0, 5)
    assert taking(pause_note(5), pause_note(None)).pause is None
    assert taking(pause_note(5), pause_note(None), pause_note(7)).pause == GroupPause(2, 7)


def test_a_partition_confirms_one_pause_and_not_the_next():
    first, second = GroupPause(0, 5), GroupPause(3, 6)
    notes = taking(pause_note(5), idle_note(PLACE, first), pause_note(None), pause_note(6))

    assert second == notes.pause
    assert {PLACE: first.at} == notes.idle
    assert {} == notes.entries


def test_an_earlier_release_takes_the_notes_for_requests_of_partitions_that_it_never_has():
    for key, value, headers in (pause_note(5), idle_note(PLACE, GroupPause(0, 5))):
        kind, topic, partition, about = orjson.loads(key)
        assert ("asked", None, ()) == (kind, about, headers)
        assert not topic or partition < 0
        assert {"drop", "everything", "offset"} < orjson.loads(value).keys()


def test_a_paused_member_hands_out_nothing_and_is_idle_when_nothing_is_in_hand():
    dispatcher = Dispatcher(SPEC)
    for place in (PLACE, OTHER):
        dispatcher.open(place, 0, {})
    dispatcher.add(PLACE, [record(0), record(1)])
    work = dispatcher.take(0)

    assert {OTHER} == dispatcher.pause(paused=True)
    assert dispatcher.take(0) is None
    assert dispatcher.acked(work, work.step.item)
    assert {PLACE, OTHER} == dispatcher.pause(paused=True)
    assert dispatcher.take(0) is None

    dispatcher.pause(paused=False)
    assert 1 == dispatcher.take(0).step.item.offset


def test_what_is_put_back_is_handed_out_again_as_the_same_attempt():
    dispatcher = Dispatcher(SPEC)
    dispatcher.open(PLACE, 0, {})
    dispatcher.add(PLACE, [record(0)])
    work = dispatcher.take(0)
    dispatcher.pause(paused=True)
    assert dispatcher.put_back(work, work.step.item)

    assert {PLACE} == dispatcher.pause(paused=True)
    assert dispatcher.take(0) is None
    dispatcher.pause(paused=False)
    again = dispatcher.take(0)
    assert (work.step.item, 0) == (again.step.item, again.step.item.attempts)
    assert dispatcher.acked(again, again.step.item)
    assert {PLACE: 1} == dispatcher.committable()
