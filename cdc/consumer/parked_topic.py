"""ParkedTopic: reads and writes a group's parked records, and lists them for operators."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from cdc.broker.group.key_value_topic import KeyValueTopic, read_all
from cdc.consumer.change import instant
from cdc.consumer.parking import ParkedNotes, StoredRecord, restored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from cdc.broker.errors import RecordRefusedError
    from cdc.broker.topics.extent import PartitionId
    from cdc.consumer.parking import GroupPause, Note, Request
    from cdc.consumer.partition_queue import Key, ParkedRecord


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """A key whose changes wait for an operator's decision.

    Attributes:
        topic: Topic of its records.
        partition: Partition of its records.
        offset: Offset of the record for which it is parked.
        key: The key's columns, encoded; None for a table without a key, or if the record's key
            cannot be read.
        error_type: Class of the error.
        error_code: Its stable code, or SQLSTATE; None if it has none.
        attempts: Number of calls of the handler; 0 if it could not be decoded.
        parked_at: When it was parked.
        waiting: Later changes of the key behind it.
        raw_key: The key's bytes.
    """

    topic: str
    partition: int
    offset: int
    key: Mapping[str, Any] | None = field(repr=False)
    error_type: str
    error_code: str | None
    attempts: int
    parked_at: datetime
    waiting: int
    raw_key: bytes | None = field(repr=False)


class ParkedTopic:
    """The parked records of a group, in their topic.

    Threads: `catch_up`, `look` and `requests` must be called from one thread, all others may be
    called from any.

    Args:
        bootstrap: Kafka's address.
        topic: The topic of parked records; created if it is missing.
        refused: Called, in another thread, if the brokers refuse a message.
    """

    def __init__(
        self, bootstrap: str, topic: str, refused: Callable[[RecordRefusedError], None]
    ) -> None:
        self._topic_store = KeyValueTopic(bootstrap, topic)
        self._notes = ParkedNotes()
        self._refused = refused
        self._guard = threading.Lock()  # of the notes
        self._reading = threading.Lock()

    def catch_up(self) -> None:
        """Processes everything that was written before now."""
        for note in self._topic_store.catch_up():
            with self._guard:
                self._notes.take(note)

    def look(self) -> None:
        """Processes what was written since the last call."""
        for note in self._topic_store.read_new():
            with self._guard:
                self._notes.take(note)

    def of(self, partition: PartitionId) -> dict[Key, list[ParkedRecord]]:
        """Returns the parked records of a partition."""
        with self._guard:
            return self._notes.shelf(partition)

    def requests(self, partition: PartitionId) -> list[Request]:
        """Returns the requests about a partition."""
        with self._guard:
            return list(self._notes.requests.get(partition, {}).values())

    def pause(self) -> GroupPause | None:
        """Returns the pause of the group; None if it is not paused."""
        with self._guard:
            return self._notes.pause

    def keys(self) -> list[ParkedKey]:
        """Returns the parked keys of all partitions, by the notes processed so far."""
        with self._guard:
            return _keys(self._notes)

    def read(self, at: int) -> StoredRecord | None:
        """Returns the record that was written at an offset; None if it is forgotten."""
        with self._reading:
            note = self._topic_store.read(at)
        return None if note is None or note.value is None else restored(note)

    def write(self, note: Note, written: Callable[[int], None] = lambda _: None) -> None:
        """Writes a note; `written` is called with its offset, in another thread."""
        key, value, headers = note
        self._topic_store.write(key, value, headers, written, self._refused)

    def flush(self) -> None:
        """Waits until everything is written or refused."""
        self._topic_store.flush()

    def close(self) -> None:
        """Closes the connections."""
        self._topic_store.close()


def parked_keys(bootstrap: str, topic: str) -> list[ParkedKey]:
    """Returns the parked keys that are recorded in a group's topic."""
    notes = ParkedNotes()
    for note in read_all(bootstrap, topic):
        notes.take(note)
    return _keys(notes)


def _keys(notes: ParkedNotes) -> list[ParkedKey]:
    found = []
    for (topic, partition), entries in sorted(notes.entries.items()):
        shelf = notes.shelf((topic, partition))
        for key, (first, *behind) in shelf.items():
            if first.failure is None:
                continue  # the one before it was given up just now
            found.append(
                ParkedKey(
                    topic,
                    partition,
                    first.offset,
                    _fields(key),
                    first.failure.error_type,
                    first.failure.error_code,
                    first.failure.attempts,
                    instant(first.parked_at_ms * 1_000),
                    len(behind),
                    key,
                )
            )
        del entries
    return found


def _fields(key: Key) -> Mapping[str, Any] | None:
    try:
        fields = None if key is None else orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) else None
