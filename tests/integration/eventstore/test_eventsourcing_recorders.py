"""The recorder test cases that `eventsourcing` ships in its wheel, over our log.

Not run on Postgres is `NonInterleavingNotificationIDsBaseCase`. It wants the notification ids of
two appends at the same time never to alternate, because the library's readers go on after the
greatest id they saw: a lower one that commits later would be lost, so its recorders lock the whole
table for each append. Our readers are held below whatever is still to be committed instead, so
that ids may alternate and writers need not wait for each other. What the case is there to protect
is tested in its place: a reader that follows while two large appends race misses nothing.
"""

from __future__ import annotations

from threading import Barrier, Thread
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent, Tracking

from eventstore.memory import MemoryEventLog
from tests.support.eventsourcing_recorder import (
    LogAggregateRecorder,
    LogApplicationRecorder,
    LogProcessRecorder,
    LogTrackingRecorder,
    library_cases,
)

if TYPE_CHECKING:
    from eventstore.log import EventLog

pytestmark = pytest.mark.integration

cases = library_cases()


class OnMemory:
    log: EventLog

    @pytest.fixture(autouse=True)
    def _take_log(self) -> None:
        self.log = MemoryEventLog()


class OnPostgres:
    log: EventLog

    @pytest.fixture(autouse=True)
    def _take_log(self, pg_log: EventLog) -> None:
        self.log = pg_log


class AggregateCase(cases.AggregateRecorderTestCase):
    log: EventLog

    def create_recorder(self) -> LogAggregateRecorder:
        return LogAggregateRecorder(self.log)


class ApplicationCase(cases.ApplicationRecorderTestCase):
    log: EventLog

    def create_recorder(self) -> LogApplicationRecorder:
        return LogApplicationRecorder(self.log)

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TrackingCase(cases.TrackingRecorderTestCase):
    log: EventLog

    def create_recorder(self) -> LogTrackingRecorder:
        return LogTrackingRecorder(self.log)


class ProcessCase(cases.ProcessRecorderTestCase):
    log: EventLog

    def create_recorder(self) -> LogProcessRecorder:
        return LogProcessRecorder(self.log)


# unittest's classes are collected whatever they are called: these are halves
for half in (AggregateCase, ApplicationCase, TrackingCase, ProcessCase):
    half.__test__ = False


class TestAggregateRecorderOnMemory(OnMemory, AggregateCase):
    __test__ = True


class TestAggregateRecorderOnPostgres(OnPostgres, AggregateCase):
    __test__ = True


class TestApplicationRecorderOnMemory(OnMemory, ApplicationCase):
    __test__ = True


class TestApplicationRecorderOnPostgres(OnPostgres, ApplicationCase):
    __test__ = True


class TestTrackingRecorderOnMemory(OnMemory, TrackingCase):
    __test__ = True


class TestTrackingRecorderOnPostgres(OnPostgres, TrackingCase):
    __test__ = True


class TestProcessRecorderOnMemory(OnMemory, ProcessCase):
    __test__ = True


class TestProcessRecorderOnPostgres(OnPostgres, ProcessCase):
    __test__ = True


class TestNonInterleavingNotificationIdsOnMemory(
    OnMemory, cases.NonInterleavingNotificationIDsBaseCase
):
    def create_recorder(self) -> LogApplicationRecorder:
        return LogApplicationRecorder(self.log)


def stored(originator_id: object, version: int, topic: str = "module:Class.Event") -> StoredEvent:
    return StoredEvent(originator_id, version, topic, b"\x00\xff")


def test_a_reader_that_follows_two_racing_appends_misses_none_of_their_events(pg_log):
    recorder = LogApplicationRecorder(pg_log)
    start = Barrier(3)

    def insert() -> None:
        originator_id = uuid4()
        start.wait()
        recorder.insert_events([stored(originator_id, version) for version in range(1, 1001)])

    writers = [Thread(target=insert) for _ in range(2)]
    for writer in writers:
        writer.start()
    start.wait()
    seen: list[int] = []
    writing = True
    while writing:
        writing = any(writer.is_alive() for writer in writers)
        while page := recorder.select_notifications(
            seen[-1] if seen else None, 100, inclusive_of_start=False
        ):
            seen += [notification.id for notification in page]
    whole = [notification.id for notification in recorder.select_notifications(None, 3000)]

    assert 2000 == len(whole)
    assert whole == seen


@pytest.mark.parametrize("first", [0, 1])
def test_events_of_several_originators_are_inserted_at_once_or_not_at_all(pg_log, first):
    recorder = LogProcessRecorder(pg_log)
    one, other = uuid4(), "a name"
    events = [stored(one, first), stored(other, first), stored(one, first + 1)]
    tracking = Tracking("upstream", 5)
    ids = recorder.insert_events(events, tracking=tracking)
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored(one, first + 2), stored(other, first)])
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored(one, first + 2)], tracking=tracking)
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored(one, first + 3)])

    found = recorder.select_notifications(None, 10)
    by_id = {event.id: (event.originator_id, event.originator_version) for event in found}
    assert [(e.originator_id, e.originator_version) for e in events] == [by_id[n] for n in ids]
    assert [events[0], events[2]] == recorder.select_events(one)
    assert max(ids) == recorder.max_notification_id()
    assert 5 == recorder.max_tracking_id("upstream")
