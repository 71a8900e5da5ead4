"""Recorders of the library `eventsourcing` over an event log, so that its own test cases try ours.

How its words map onto ours:

- *originator_id*: a stream. A UUID is `uuid-<id>`, a text is `name-<text>`: both kinds can be told
  apart when they are read back.
- *originator_version*: a place in the stream. The library counts from 1 or from 0, as the caller
  likes; a stream counts from 1. The first event says in its payload where its caller began, and
  the distance holds for the rest. Versions that leave a gap are refused, which the library's own
  recorders accept: for us a stream without gaps is a promise.
- *topic* (`module:Class.Event`): the event's type, with `-__-` for the colon.
- *state*: bytes of any kind; base64 in a JSON payload.
- *notification id*: the global position. It ascends and may have gaps; readers see it only when
  nothing can come below it any more.
- *tracking*: an event in the stream `tracking-<application>`, written in the same append as the
  events that the tracked notification led to. Trackings are no notifications.
- *IntegrityError*: what our log calls a wrong expected version.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    IntegrityError,
    Notification,
    ProcessRecorder,
    StoredEvent,
    Subscription,
    Tracking,
    TrackingRecorder,
)

from eventstore.errors import WrongExpectedVersionError
from eventstore.log import LogPart, StreamPart
from eventstore.model.event import AppendRequest, NewEvent, StreamAppend
from eventstore.model.names import DEFAULT_TENANT
from eventstore.model.query import Query, QueryItem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eventstore import event as ours
    from eventstore.log import EventLog

TRACKING = "tracking"
POLL_S = 0.02


class LogRecorder:
    def __init__(self, log: EventLog) -> None:
        self.log = log

    def append(self, events: Sequence[StoredEvent], tracking: Tracking | None = None) -> list[int]:
        """Appends all or nothing; returns the global positions in the order of the events."""
        appends = [self._stream_append(stream, mine) for stream, mine in by_stream(events).items()]
        if tracking is not None:
            appends.append(self._tracking_append(tracking))
        if not appends:
            return []
        try:
            self.log.append(AppendRequest(tuple(appends)))
        except WrongExpectedVersionError as refused:
            raise IntegrityError(str(refused)) from refused
        return self._positions(events, appends) if events else []

    def _stream_append(self, stream: str, events: Sequence[StoredEvent]) -> StreamAppend:
        first = events[0].originator_version
        if [event.originator_version for event in events] != list(
            range(first, first + len(events))
        ):
            raise IntegrityError("the versions are not one after another")
        begun = next(self._read(stream, StreamPart(limit=1)), None)
        base = first if begun is None else begun.originator_version
        if first < base:
            raise IntegrityError("the stream begins at a later version")
        return StreamAppend(stream, tuple(map(new_event, events)), first - base)

    def _tracking_append(self, tracking: Tracking) -> StreamAppend:
        stream = f"{TRACKING}-{tracking.application_name}"
        last = next(self._last(stream), None)
        if last is not None and tracked(last) >= tracking.notification_id:
            raise IntegrityError("this notification, or a later one, is tracked already")
        data = json.dumps({"notification_id": tracking.notification_id}).encode()
        event = NewEvent("notification.tracked", data, uuid4(), datetime.now(UTC))
        return StreamAppend(stream, (event,), 0 if last is None else last.stream_position)

    def _positions(
        self, events: Sequence[StoredEvent], appends: Sequence[StreamAppend]
    ) -> list[int]:
        # Events of others may lie between those of one append, so the last position is not enough.
        places = {
            (append.stream, original(event).originator_version): event.global_position
            for append in appends
            if not append.stream.startswith(TRACKING)
            for event in self.log.read_stream(
                DEFAULT_TENANT,
                append.stream,
                StreamPart(append.expected_version, append.expected_version + len(append.events)),
            )
        }
        return [places[stream_of(e.originator_id), e.originator_version] for e in events]

    def _read(self, stream: str, part: StreamPart) -> Iterator[StoredEvent]:
        return map(original, self.log.read_stream(DEFAULT_TENANT, stream, part))

    def _last(self, stream: str) -> Iterator[ours.StoredEvent]:
        part = StreamPart(backwards=True, limit=1)
        return self.log.read_stream(DEFAULT_TENANT, stream, part)

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        stream = stream_of(originator_id)
        begun = next(self._read(stream, StreamPart(limit=1)), None)
        if begun is None:
            return []
        before = begun.originator_version - 1  # what a stream counts less
        part = StreamPart(
            after=0 if gt is None else gt - before,
            through=None if lte is None else lte - before,
            backwards=desc,
            limit=limit,
        )
        return list(self._read(stream, part))


class LogAggregateRecorder(LogRecorder, AggregateRecorder):
    def insert_events(self, stored_events: Sequence[StoredEvent], **_: Any) -> None:
        self.append(stored_events)


class LogApplicationRecorder(LogRecorder, ApplicationRecorder):
    def insert_events(self, stored_events: Sequence[StoredEvent], **_: Any) -> Sequence[int] | None:
        return self.append(stored_events)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        after = 0 if start is None else start - inclusive_of_start
        items = (QueryItem(types=frozenset(map(type_of, topics))),) if topics else ()
        found: list[Notification] = []
        while len(found) < limit:
            part = LogPart(Query(items), after=after, through=stop, limit=limit - len(found))
            page = list(self.log.read_log(DEFAULT_TENANT, part))
            found += [notification(event) for event in page if event.category != TRACKING]
            if not page:
                break
            after = page[-1].global_position
        return found

    def max_notification_id(self) -> int | None:
        events = self.log.read_log(DEFAULT_TENANT, LogPart(backwards=True))
        return next((e.global_position for e in events if e.category != TRACKING), None)

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        return PollingSubscription(self, gt, topics)


class LogTrackingRecorder(LogRecorder, TrackingRecorder):
    def insert_tracking(self, tracking: Tracking) -> None:
        self.append([], tracking)

    def max_tracking_id(self, application_name: str) -> int | None:
        last = next(self._last(f"{TRACKING}-{application_name}"), None)
        return None if last is None else tracked(last)


class LogProcessRecorder(LogTrackingRecorder, LogApplicationRecorder, ProcessRecorder):
    def insert_events(
        self, stored_events: Sequence[StoredEvent], tracking: Tracking | None = None, **_: Any
    ) -> Sequence[int] | None:
        return self.append(stored_events, tracking)


class PollingSubscription(Subscription[ApplicationRecorder]):
    """Asks again and again; that is all that the port promises to work."""

    def __init__(
        self, recorder: ApplicationRecorder, gt: int | None = None, topics: Sequence[str] = ()
    ) -> None:
        super().__init__(recorder, gt, topics)
        self._stopped = Event()
        self._ahead: list[Notification] = []

    def stop(self) -> None:
        super().stop()
        self._stopped.set()

    def __next__(self) -> Notification:
        while not self._stopped.is_set():
            if self._ahead:
                following = self._ahead.pop(0)
                self._last_notification_id = following.id
                return following
            self._ahead = list(
                self._recorder.select_notifications(
                    self._last_notification_id or 0,
                    500,
                    topics=self._topics,
                    inclusive_of_start=False,
                )
            )
            if not self._ahead:
                self._stopped.wait(POLL_S)
        raise StopIteration


def library_cases() -> ModuleType:
    """Imports the library's test cases.

    They import its cipher, for cases that are not ours; and the cipher a library that we lack.
    """
    cipher = "eventsourcing.cipher"
    lacking = find_spec("Crypto") is None
    if lacking:
        sys.modules[cipher] = ModuleType(cipher)
        sys.modules[cipher].AESCipher = object
    try:
        return import_module("eventsourcing.tests.persistence")
    finally:
        if lacking:
            del sys.modules[cipher]


def by_stream(events: Sequence[StoredEvent]) -> dict[str, list[StoredEvent]]:
    streams: dict[str, list[StoredEvent]] = {}
    for event in events:
        streams.setdefault(stream_of(event.originator_id), []).append(event)
    return streams


def stream_of(originator_id: UUID | str) -> str:
    kind = "uuid" if isinstance(originator_id, UUID) else "name"
    return f"{kind}-{originator_id}"


def originator_of(stream: str) -> UUID | str:
    kind, _, identity = stream.partition("-")
    return UUID(identity) if kind == "uuid" else identity


def type_of(topic: str) -> str:
    return topic.replace(":", "-__-")


def topic_of(type_: str) -> str:
    return type_.replace("-__-", ":")


def new_event(event: StoredEvent) -> NewEvent:
    payload = {
        "version": event.originator_version,
        "state": base64.b64encode(event.state).decode(),
    }
    data = json.dumps(payload).encode()
    return NewEvent(type_of(event.topic), data, uuid4(), datetime.now(UTC))


def original(event: ours.StoredEvent) -> StoredEvent:
    payload = json.loads(event.data)
    return StoredEvent(
        originator_of(event.stream),
        payload["version"],
        topic_of(event.type),
        base64.b64decode(payload["state"]),
    )


def notification(event: ours.StoredEvent) -> Notification:
    return Notification(**vars(original(event)), id=event.global_position)


def tracked(event: ours.StoredEvent) -> int:
    return int(json.loads(event.data)["notification_id"])
