"""Start: where a group begins to read a partition without a committed offset."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from cdc.consumer.errors import ConsumerSpecError
from cdc.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.change_event import ChangeEvent
    from cdc.position import ChangePosition

CLOCKS_MS: Final = 10_000
"""How far the source's clock may be ahead of the connector's without missing changes."""


class StartKind(StrEnum):
    """What determines a start."""

    BEGINNING = "beginning"
    END = "end"
    TIME = "time"
    POSITION = "position"


@dataclass(frozen=True, slots=True)
class GroupStart:
    """Where a group begins; only applies where the group has no committed offset.

    Attributes:
        BEGINNING: At the first record in the topic.
        END: After the last record at the time when the group begins. Partitions added to the topic
            later are also read from that time on.
        kind: What determines it.
        time: For a time: the first change committed at or after it.
        position: For a position: the first change committed after it. Snapshot rows count as older
            than any streamed change, so those before that change in the topic are skipped.
        epoch: For an `Lsn`: the source's epoch; None for the newest in the topic.
    """

    kind: StartKind
    time: datetime | None = None
    position: ChangePosition | Lsn | None = None
    epoch: int | None = None

    BEGINNING: ClassVar[GroupStart]
    END: ClassVar[GroupStart]

    @classmethod
    def at_time(cls, time: datetime) -> GroupStart:
        """Begins with the first change that was committed at a time or later.

        Raises:
            ConsumerSpecError: The time has no time zone.
        """
        if time.tzinfo is None:
            raise ConsumerSpecError(
                "a start time needs a time zone", hint="datetime.now(UTC), or time.astimezone()"
            )
        return cls(StartKind.TIME, time=time.astimezone(UTC))

    @classmethod
    def after(cls, position: ChangePosition | Lsn, *, epoch: int | None = None) -> GroupStart:
        """Begins with the first change whose transaction was committed after a position.

        After an `Lsn`, such as that of `pg_current_wal_lsn()`, the preceding transaction may be
        delivered again, because its records do not contain the position of its own commit.
        """
        return cls(StartKind.POSITION, position=position, epoch=epoch)


GroupStart.BEGINNING = GroupStart(StartKind.BEGINNING)
GroupStart.END = GroupStart(StartKind.END)


class Partition(Protocol):
    """A partition to search, in its state when the search began."""

    begin: int
    end: int

    def at_time(self, time_ms: int) -> int:
        """Returns the first offset whose record was written at the time or later, or `end`."""
        ...

    def streamed(self, offset: int, before: int) -> tuple[int, ChangeEvent] | None:
        """Returns the first streamed change from an offset on, with its offset.

        None if there is none before another offset. Snapshot rows, tombstones, and records that
        are no changes are skipped.
        """
        ...

    def committed_since(self, offset: int, time_us: int) -> int:
        """Returns the first offset, from a given one, with a change committed then or later.

        Returns `end` if there is none.
        """
        ...


def locate(start: GroupStart, partition: Partition, began_ms: int | None = None) -> int:
    """Returns the offset of a start in a partition.

    Args:
        start: Where to begin.
        partition: The partition.
        began_ms: When the group began, if it has; records after that are read.
    """
    if start.kind is StartKind.BEGINNING:
        return partition.begin
    if start.kind is StartKind.END:
        return partition.end if began_ms is None else partition.at_time(began_ms)
    if start.time is not None:
        time_us = int(start.time.timestamp() * 1_000_000)
        nearby = partition.at_time(max(0, time_us // 1_000 - CLOCKS_MS))
        return partition.committed_since(nearby, time_us)
    if isinstance(start.position, Lsn):
        return _after_lsn(partition, start.position, start.epoch)
    wanted = start.position
    return _first(partition, lambda change: wanted is None or change.position > wanted)


def _after_lsn(partition: Partition, lsn: Lsn, epoch: int | None) -> int:
    """Finds the start after an LSN.

    A row contains the commit before its transaction; its own commit may be after the LSN.
    """
    if epoch is None:
        newest = _last(partition)
        epoch = newest.position.epoch if newest else 1
    beyond = _first(partition, lambda change: _committed_before(change) > (epoch, lsn))
    last = _last(partition, beyond)
    if last is None or last.position.epoch != epoch:
        return beyond
    transaction = _committed_before(last)
    return min(beyond, _first(partition, lambda change: _committed_before(change) >= transaction))


def _committed_before(change: ChangeEvent) -> tuple[int, Lsn]:
    return change.position.epoch, change.position.commit_lsn


def _first(partition: Partition, wanted: Callable[[ChangeEvent], bool]) -> int:
    """Returns the offset of a wanted change after an unwanted one; `end` if there is none.

    If the connector has repeated a part of the log, there are several such offsets. Each is
    correct: all wanted changes follow each of them.
    """
    low, high = partition.begin, partition.end  # before low: not wanted; from high on: wanted
    while low < high:
        middle = (low + high) // 2
        found = partition.streamed(middle, high)
        if found is None:
            high = middle
        elif wanted(found[1]):
            # there is no streamed change between them
            high = middle
        else:
            low = found[0] + 1
    found = partition.streamed(high, partition.end)
    return found[0] if found else partition.end


def _last(partition: Partition, end: int | None = None) -> ChangeEvent | None:
    """Returns the last streamed change before an offset; looks back in growing steps."""
    end = partition.end if end is None else end
    step, high = 1, end
    while high > partition.begin:
        low = max(partition.begin, end - step)
        last = None
        position = low
        while (found := partition.streamed(position, high)) is not None:
            last, position = found[1], found[0] + 1
        if last is not None:
            return last
        high, step = low, step * 4
    return None
