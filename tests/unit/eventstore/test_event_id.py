"""Ids of events ascend and do not come again."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

from eventstore.model import event_id
from eventstore.model.event_id import EventIds


def test_event_ids_ascend_whatever_the_clock_does(monkeypatch):
    now = time.time_ns()
    readings = iter([now, now, now - 3_600_000_000_000, now + 5_000_000, now, now])
    monkeypatch.setattr(time, "time_ns", lambda: next(readings))
    ids = EventIds()
    made = [ids() for _ in range(6)]

    assert sorted(made) == made
    assert 6 == len(set(made))
    assert {(7, "specified in RFC 4122")} == {(each.version, each.variant) for each in made}
    assert (now // 1_000_000) == made[0].int >> 80


def test_event_ids_ascend_past_the_end_of_a_millisecond(monkeypatch):
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    ids = EventIds()
    first = ids()
    ids._tail = 2**74 - 1
    second, third = ids(), ids()

    assert first < second < third
    assert (now // 1_000_000) + 1 == second.int >> 80


def test_event_ids_are_unique_across_threads():
    ids = EventIds()
    made: list[list[UUID]] = [[] for _ in range(8)]
    ready = threading.Barrier(8)

    def make(mine: list[UUID]) -> None:
        ready.wait()
        mine.extend(ids() for _ in range(500))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 4000 == len({each for mine in made for each in mine})
    assert all(sorted(mine) == mine for mine in made)


def test_a_forked_child_does_not_repeat_its_parents_ids(monkeypatch):
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)  # one millisecond for both
    event_id.new_event_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, event_id.new_event_id().bytes)
        os._exit(0)
    os.waitpid(child, 0)

    assert event_id.new_event_id() != UUID(bytes=os.read(reader, 16))
    os.close(reader)
    os.close(writer)
