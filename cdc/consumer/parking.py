"""Notes about a group's parked records, in a compacted Kafka topic.

Why a topic: a consumer may have no database, and a topic is as durable as the changes themselves,
with the same access rights and the same backup. Each note contains the whole record and the topic
is compacted, so a parked record is kept until it is done, regardless of the change topics.

Two kinds of notes are about parked records. A *parked record* has the key
`["parked", topic, partition, offset]`, the original value, and headers with the cause and time of
parking. A *request* to redeliver a key's records or to discard some has the key
`["asked", topic, partition, key]`; the member of the group that owns the partition executes it and
then deletes it. Operators write requests; only the owner of a partition writes and deletes its
parked records.

A *pause* of the group, and the *idle* notes by which members confirm it, have the keys of requests
about partitions that do not exist.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson

from cdc.consumer.partition_queue import Key, ParkedRecord
from cdc.consumer.retry import ChangeFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.broker.topics.extent import PartitionId

NOTE_HEADER: Final = "headwater.parked"

Note: TypeAlias = tuple[bytes, bytes | None, "Sequence[tuple[str, bytes]]"]
"""Key, value (None deletes the key) and headers of a record of the topic."""

_PARKED: Final = "parked"
_ASKED: Final = "asked"
_PAUSE_KEY: Final = orjson.dumps([_ASKED, "", 0, None])
_NO_REQUEST: Final = {"drop": False, "everything": False, "offset": -1}
"""An earlier release reads such a note as a request about a partition that it never owns, and
ignores it. A group can therefore return to that release."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A parked record, as its change topic had it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Request:
    """A request about a parked key.

    Attributes:
        key: The parked key.
        drop: Discard the record for which it is parked; otherwise redeliver all records.
        everything: Discard the records behind it, too.
        offset: Offset of the record for which the key was parked at the time of the request.
        at: Offset of the request in the parked topic, which distinguishes equal requests.
    """

    key: Key
    drop: bool
    everything: bool
    offset: int
    at: int = -1


@dataclass(frozen=True, slots=True)
class GroupPause:
    """An operator has paused the group.

    Attributes:
        at: Offset of the note in the parked topic, which distinguishes pauses.
        paused_at_ms: When, milliseconds since 1970.
    """

    at: int
    paused_at_ms: int


def pause_note(paused_at_ms: int | None) -> Note:
    """Returns the note that pauses the group; None resumes it."""
    if paused_at_ms is None:
        return _PAUSE_KEY, None, ()
    return _PAUSE_KEY, orjson.dumps({**_NO_REQUEST, "paused_at_ms": paused_at_ms}), ()


def idle_note(topic_partition: PartitionId, pause: GroupPause) -> Note:
    """Returns the note that no change of a partition is in progress, because of a pause."""
    topic, partition = topic_partition
    key = orjson.dumps([_ASKED, topic, -1 - partition, None])
    return key, orjson.dumps({**_NO_REQUEST, "pause": pause.at}), ()


def parked_note(record: Any, entry: ParkedRecord) -> Note:
    """Returns the note that parks a record.

    Args:
        record: As Kafka delivered it.
        entry: Why and when it is parked.
    """
    failure = entry.failure
    about = {
        "key": _text(record.key),
        "timestamp_ms": record.timestamp,
        "parked_at_ms": entry.parked_at_ms,
        "error_type": failure.error_type if failure else None,
        "error_code": failure.error_code if failure else None,
        "attempts": failure.attempts if failure else 0,
        "permanent": failure.permanent if failure else False,
    }
    headers = [(name, value) for name, value in record.headers if name != NOTE_HEADER]
    key = orjson.dumps([_PARKED, record.topic, record.partition, record.offset])
    return key, record.value, [*headers, (NOTE_HEADER, orjson.dumps(about))]


def forgotten_note(partition: PartitionId, offset: int) -> Note:
    """Returns the note that deletes a parked record."""
    return orjson.dumps([_PARKED, *partition, offset]), None, ()


def request_note(partition: PartitionId, request: Request) -> Note:
    """Returns the note of a request."""
    asked = {"drop": request.drop, "everything": request.everything, "offset": request.offset}
    return _request_key(partition, request.key), orjson.dumps(asked), ()


def settled_note(partition: PartitionId, key: Key) -> Note:
    """Returns the note that deletes a completed request."""
    return _request_key(partition, key), None, ()


def restored(note: Any) -> StoredRecord:
    """Returns the record that a note contains."""
    _, topic, partition, offset = orjson.loads(note.key)
    about = _about(note)
    headers = [(name, value) for name, value in note.headers if name != NOTE_HEADER]
    key = _bytes(about["key"])
    return StoredRecord(
        topic, partition, offset, about["timestamp_ms"], key, note.value, tuple(headers)
    )


class ParkedNotes:
    """The state that follows from the notes, read from first to last."""

    def __init__(self) -> None:
        self.entries: dict[PartitionId, dict[int, tuple[Key, ParkedRecord]]] = defaultdict(dict)
        self.requests: dict[PartitionId, dict[Key, Request]] = defaultdict(dict)
        self.pause: GroupPause | None = None
        self.idle: dict[PartitionId, int] = {}

    def take(self, note: Any) -> None:
        """Applies the next note."""
        kind, topic, partition, what = orjson.loads(note.key)
        topic_partition = (topic, partition)
        if note.key == _PAUSE_KEY:
            self._take_pause(note)
        elif kind == _ASKED and partition < 0:
            self.idle[topic, -1 - partition] = orjson.loads(note.value)["pause"]
        elif kind == _ASKED:
            self._take_request(topic_partition, _bytes(what), note)
        elif note.value is None:
            self.entries[topic_partition].pop(what, None)
        else:
            about = _about(note)
            failure = None
            if about["error_type"] is not None:
                failure = ChangeFailure(
                    about["error_type"],
                    about["error_code"],
                    about["attempts"],
                    about["permanent"],
                )
            entry = ParkedRecord(what, note.offset, failure, about["parked_at_ms"])
            self.entries[topic_partition][what] = (_bytes(about["key"]), entry)

    def shelf(self, partition: PartitionId) -> dict[Key, list[ParkedRecord]]:
        """Returns the parked records of a partition, by key, in order."""
        shelf: dict[Key, list[ParkedRecord]] = defaultdict(list)
        for key, entry in self.entries.get(partition, {}).values():
            shelf[key].append(replace(entry))
        return {key: sorted(entries) for key, entries in shelf.items()}

    def _take_pause(self, note: Any) -> None:
        if note.value is None:
            self.pause = None
        else:
            self.pause = GroupPause(note.offset, orjson.loads(note.value)["paused_at_ms"])

    def _take_request(self, partition: PartitionId, key: Key, note: Any) -> None:
        if note.value is None:
            self.requests[partition].pop(key, None)
        else:
            asked = orjson.loads(note.value)
            self.requests[partition][key] = Request(
                key, asked["drop"], asked["everything"], asked["offset"], note.offset
            )


def _request_key(partition: PartitionId, key: Key) -> bytes:
    return orjson.dumps([_ASKED, *partition, _text(key)])


def _about(note: Any) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(dict(note.headers)[NOTE_HEADER])
    return found


def _text(key: Key) -> str | None:
    return None if key is None else base64.b64encode(key).decode()


def _bytes(text: str | None) -> Key:
    return None if text is None else base64.b64decode(text)
