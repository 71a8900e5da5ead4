"""Retention of the topics, and readers that are about to lose records.

A topic keeps records for a time, or up to a size, which a known write rate converts to a time. The
time left to a reader is the retention time less the age of its next record. A reader that has read
everything is safe, however old its last record is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from cdc.upkeep.errors import LogLostError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdc.broker.topics.extent import PartitionExtent, PartitionId

LEFT_MIN: Final = 0.25
"""Share of the retention that a reader should have left; less is reported as an alert."""

_FOREVER: Final = "-1"


class ReaderState(StrEnum):
    """The state of a reader; determined on request, stored nowhere."""

    OK = "OK"
    AT_RISK = "AT_RISK"  # less than a quarter of what is kept is left
    LOST = "LOST"  # its next record was deleted


@dataclass(frozen=True, slots=True)
class PartitionRetention:
    """The retention of one partition.

    Attributes:
        topic: Its topic.
        partition: Its number.
        size_bytes: Size of one copy.
        records: Number of records, including compacted ones.
        bytes_per_second: Write rate.
        held_s: Age of its oldest record, seconds; None if it is empty.
        keeps_s: How long it keeps a record, seconds; None for no limit.
    """

    topic: str
    partition: int
    size_bytes: int
    records: int
    bytes_per_second: float
    held_s: float | None
    keeps_s: float | None


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """One reader of one partition.

    Attributes:
        name: Consumer group, or query of the job.
        topic: The topic.
        partition: The partition.
        state: Its state.
        wanted: Offset of its next record.
        earliest: First offset of the partition.
        left_records: Number of records between the two.
        left_s: Time until the next record is deleted; None if it never is.
    """

    name: str
    topic: str
    partition: int
    state: ReaderState
    wanted: int
    earliest: int
    left_records: int
    left_s: float | None

    def error(self) -> LogLostError:
        """Returns the error that its reader ends with, once it is lost."""
        return lost(self.name, self.topic, self.partition, self.wanted, self.earliest)


def lost(name: str, topic: str, partition: int, wanted: int, earliest: int) -> LogLostError:
    """Returns the error of a reader whose next record is gone."""
    return LogLostError(
        f"{name} needs records that topic {topic} has deleted",
        detail=f"partition {partition}, wanted offset {wanted}, earliest {earliest}: "
        f"{earliest - wanted} records are missing",
        hint=(
            "take new snapshots with headwater source resnapshot, and raise topic_retention_hours"
        ),
    )


def lasts_s(disk_bytes: float, bytes_per_second: float) -> float | None:
    """Returns how long a disk holds a log that grows evenly; None if it does not grow."""
    return disk_bytes / bytes_per_second if bytes_per_second > 0 else None


def keeps_s(configs: Mapping[str, str], bytes_per_second: float) -> float | None:
    """Returns how long a partition keeps a record; None for no limit.

    Args:
        configs: Properties of its topic.
        bytes_per_second: Write rate of the partition.
    """
    if "delete" not in configs.get("cleanup.policy", "delete"):
        return None
    limits = []
    if (kept_ms := configs.get("retention.ms", _FOREVER)) != _FOREVER:
        limits.append(int(kept_ms) / 1000)
    if (kept_bytes := configs.get("retention.bytes", _FOREVER)) != _FOREVER:
        limits += [s for s in [lasts_s(int(kept_bytes), bytes_per_second)] if s is not None]
    return min(limits, default=None)


def rate(extent: PartitionExtent, grown_bytes: int, window_s: float) -> float:
    """Returns the write rate, bytes per second: the latest, or else the average of its records."""
    if grown_bytes > 0 and window_s > 0:
        return grown_bytes / window_s
    if extent.oldest_at_s is None or extent.newest_at_s is None:
        return 0.0
    span_s = extent.newest_at_s - extent.oldest_at_s
    return extent.size_bytes / span_s if span_s > 0 else 0.0


def kept(
    partition: PartitionId,
    extent: PartitionExtent,
    configs: Mapping[str, str],
    bytes_per_second: float,
    now_s: float,
) -> PartitionRetention:
    """Describes a partition; see `PartitionRetention`."""
    held_s = None if extent.oldest_at_s is None else max(0.0, now_s - extent.oldest_at_s)
    return PartitionRetention(
        *partition,
        extent.size_bytes,
        extent.end - extent.earliest,
        bytes_per_second,
        held_s,
        keeps_s(configs, bytes_per_second),
    )


def reader(  # noqa: PLR0913, PLR0917  # the fields of one result
    name: str,
    found: PartitionRetention,
    extent: PartitionExtent,
    wanted: int,
    wanted_at_s: float | None,
    now_s: float,
) -> PartitionReader:
    """Describes a reader in a partition.

    Args:
        name: Consumer group or query.
        found: The retention of the partition.
        extent: The extent of the partition.
        wanted: Offset of the reader's next record.
        wanted_at_s: When that record was sent; None if there is none yet.
        now_s: The time, seconds since 1970.
    """
    left_s: float | None = None
    state = ReaderState.OK
    if wanted < extent.earliest:
        state, left_s = ReaderState.LOST, 0.0
    elif wanted < extent.end and found.keeps_s is not None and wanted_at_s is not None:
        left_s = max(0.0, found.keeps_s - (now_s - wanted_at_s))
        if left_s < LEFT_MIN * found.keeps_s:
            state = ReaderState.AT_RISK
    left = wanted - extent.earliest
    partition = found.topic, found.partition
    return PartitionReader(name, *partition, state, wanted, extent.earliest, left, left_s)
