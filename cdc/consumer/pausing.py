"""Pauses a group, in all its processes, until it is resumed.

The pause is a note in the group's parked topic, so it survives restarts and needs no database. Each
member follows the notes: it delivers no more changes, and writes a note for each of its partitions
once no change is in progress there. A member that starts reads the notes before its first delivery.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.client.admin import admin, consumer
from cdc.broker.group.key_value_topic import KeyValueTopic, read_all
from cdc.broker.group.lag import commits
from cdc.consumer.change import instant
from cdc.consumer.errors import GroupUnknownError, PauseTimeoutError
from cdc.consumer.parked_topic import parked_keys
from cdc.consumer.parking import ParkedNotes, pause_note
from cdc.consumer.spec import parked_topic

if TYPE_CHECKING:
    from datetime import datetime

    from cdc.broker.errors import RecordRefusedError
    from cdc.broker.topics.extent import PartitionId
    from cdc.consumer.parking import Note

PAUSE_TIMEOUT_S: Final = 60.0
"""Longer than `SESSION_TIMEOUT_S`: the partitions of a killed member belong to it until then."""

_LOOK_S: Final = 0.2
_STABLE: Final = "Stable"
_NO_MEMBERS: Final = ("Empty", "Dead")


def pause(
    kafka_bootstrap: str, *, source: str, group: str, timeout_s: float = PAUSE_TIMEOUT_S
) -> None:
    """Pauses a group. Once this returns, no member handles a change until `resume`.

    It does not wait for a member that has left the group although its handler still runs: one that
    Kafka counts as dead (`session_timeout_s`), or one that took longer than `handover_s` while its
    partition moved.

    Args:
        kafka_bootstrap: Kafka's address.
        source: The source.
        group: The group.
        timeout_s: Longest wait for the changes in progress, seconds.

    Raises:
        GroupUnknownError: The group has never read the source.
        PauseTimeoutError: A member has not confirmed it in time. The group stays paused.
        RecordRefusedError: Kafka rejects the message.
    """
    _check(kafka_bootstrap, source, group)
    deadline = time.monotonic() + timeout_s
    notes = ParkedNotes()
    with closing(KeyValueTopic(kafka_bootstrap, parked_topic(source, group))) as notebook:
        _take(notes, notebook)
        if notes.pause is None:
            _write(notebook, pause_note(time.time_ns() // 1_000_000))
        while True:
            partitions = assigned(kafka_bootstrap, group)
            _take(notes, notebook)
            if notes.pause is None:
                raise PauseTimeoutError(
                    f"group {group} was resumed before all members had confirmed the pause",
                    hint="pause it again",
                )
            at = notes.pause.at
            if partitions is not None and all(
                notes.idle.get(partition) == at for partition in partitions
            ):
                return
            if time.monotonic() > deadline:
                raise PauseTimeoutError(
                    f"group {group} is paused, and a member has not confirmed it",
                    detail=f"after {timeout_s:.0f} s",
                    hint="a handler still runs, or a member is of an earlier release: wait for it,"
                    " or stop it",
                )
            time.sleep(_LOOK_S)


def resume(kafka_bootstrap: str, *, source: str, group: str) -> None:
    """Resumes a paused group where it stopped.

    Raises:
        GroupUnknownError: The group has never read the source.
        RecordRefusedError: Kafka does not accept the note.
    """
    _check(kafka_bootstrap, source, group)
    with closing(KeyValueTopic(kafka_bootstrap, parked_topic(source, group))) as notebook:
        _write(notebook, pause_note(None))


def paused_at(kafka_bootstrap: str, *, source: str, group: str) -> datetime | None:
    """Returns since when a group is paused; None if it is not."""
    notes = ParkedNotes()
    for note in read_all(kafka_bootstrap, parked_topic(source, group)):
        notes.take(note)
    return None if notes.pause is None else instant(notes.pause.paused_at_ms * 1_000)


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A consumer group of a source.

    Attributes:
        group: Its name.
        state: `running`, `paused`, or `stopped` if it has no members and is not paused.
        paused_at: Since when it is paused; None if it is not.
        members: Number of its members.
        parked_keys: Number of its parked keys.
    """

    group: str
    state: str
    paused_at: datetime | None
    members: int
    parked_keys: int


def groups(kafka_bootstrap: str, *, source: str) -> list[GroupStatus]:
    """Returns the consumer groups that have read a source, by name.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    prefix = parked_topic(source, "")
    with consumer(kafka_bootstrap) as client:
        names = sorted(t.removeprefix(prefix) for t in client.topics() if t.startswith(prefix))
    if not names:
        return []
    with admin(kafka_bootstrap) as client:
        described = client.describe_groups(names)
    return [_status(kafka_bootstrap, source, each, described[each]) for each in names]


def _status(
    kafka_bootstrap: str, source: str, group: str, described: dict[str, Any]
) -> GroupStatus:
    paused = paused_at(kafka_bootstrap, source=source, group=group)
    members = len(described["members"])
    state = "paused" if paused else "running" if members else "stopped"
    parked = parked_keys(kafka_bootstrap, parked_topic(source, group))
    return GroupStatus(group, state, paused, members, len(parked))


def assigned(kafka_bootstrap: str, group: str) -> set[PartitionId] | None:
    """Returns the partitions assigned to members of a group; None during a rebalance."""
    with admin(kafka_bootstrap) as client:
        described = client.describe_groups([group])[group]
    state = described["group_state"]
    if state in _NO_MEMBERS:
        return set()
    if state != _STABLE:
        return None
    return {partition for member in described["members"] for partition in _partitions_of(member)}


def _partitions_of(member: dict[str, Any]) -> list[PartitionId]:
    topics = member["member_assignment"]["assigned_partitions"]
    return [(each["topic"], number) for each in topics for number in each["partitions"]]


def _check(kafka_bootstrap: str, source: str, group: str) -> None:
    prefix = f"{source}."
    if not any(topic.startswith(prefix) for topic, _ in commits(kafka_bootstrap, group)):
        raise GroupUnknownError(
            f"group {group} has never read source {source}",
            hint="check both names; a group exists once its first member has run",
        )


def _take(notes: ParkedNotes, notebook: KeyValueTopic) -> None:
    for note in notebook.catch_up():
        notes.take(note)


def _write(notebook: KeyValueTopic, note: Note) -> None:
    refused: list[RecordRefusedError] = []
    key, value, headers = note
    notebook.write(key, value, headers, lambda _: None, refused.append)
    notebook.flush()
    if refused:
        raise refused[0]
