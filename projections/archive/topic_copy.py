"""Topic copy: the records of a compacted topic, copied into the archive's form for one replay.

A copy is whole or nothing: whoever is killed while it is made leaves a folder without a note, and
the next one begins anew. It has rows in it, and goes as soon as the version that is filled from it
has them.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.broker.reading import compacted
from cdc.change_event import EPOCH_HEADER
from foundation.atomic_file import write_atomically
from projections.archive.progress import rest
from projections.archive.scan import ArchiveScan
from projections.archive.survey import RecordFilter, flags, integers
from projections.archive.table import Archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cdc.broker.reading.compacted import CompactedTopic, SecondLook
    from projections.archive.fold import Flags
    from projections.common.offsets import Offsets
    from projections.common.throttle import Throttle
    from projections.planning.job_config import JobConfig

RECORDS_AT_ONCE: Final = 50_000
"""Records that are in memory at once, and written in one commit."""

_FOLDER: Final = "copies"
_NOTE: Final = "copied.json"
_GIVEN: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("epoch", pa.string()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


class Superseded(NamedTuple):
    """A key of which a newer record exists than one that was copied.

    Attributes:
        partition: Where its records lie.
        key: It, as records have it.
        offset: That record; what lies before it counts no more either.
    """

    partition: int
    key: str
    offset: int


class Copied(msgspec.Struct, frozen=True):
    """A copy that is whole.

    Attributes:
        topic: The topic.
        identity: What tells it from others that had its name.
        ends: Offset after the last one that was looked at, by partition.
        records: How many records it has.
        superseded: Keys of which brokers took records away meanwhile.
    """

    topic: str
    identity: str
    ends: dict[int, int]
    records: int
    superseded: list[Superseded] = []

    @property
    def offsets(self) -> Offsets:
        """Up to where the version that is filled from it has everything."""
        return {(self.topic, number): end for number, end in self.ends.items()}

    def taken(self) -> RecordFilter | None:
        """Which of its records count; None if all do."""
        return Newest(self.superseded) if self.superseded else None


class Newest(RecordFilter):
    """Takes records but those that a newer one of their key, not copied, has superseded.

    Args:
        superseded: Up to where.
    """

    def __init__(self, superseded: Sequence[Superseded]) -> None:
        super().__init__()
        self._until: dict[int, dict[str, int]] = {}
        for partition, key, offset in superseded:
            self._until.setdefault(partition, {})[key] = offset

    def there(self, topic: str, batch: pa.RecordBatch) -> Flags:  # noqa: ARG002
        """Whether records count."""
        found = np.ones(batch.num_rows, np.bool_)
        partitions, offsets = integers(batch.column("partition")), integers(batch.column("offset"))
        for partition, until in self._until.items():
            places = pc.index_in(batch.column("key"), pa.array(list(until), pa.string()))
            known = flags(places.is_valid()) & (partitions == partition)
            ends = np.array([*until.values()])[integers(places)]
            found &= ~known | (offsets > ends)
        return found


class TopicCopy:
    """The copy for one version of a view.

    Args:
        config: The job's configuration.
        place: The version's place.
    """

    def __init__(self, config: JobConfig, place: str) -> None:
        self._folder = copies_folder(config) / place
        self._bootstrap = config.bootstrap

    @property
    def archive(self) -> Path:
        """Folder of its table."""
        return self._folder / "records"

    def finished(self) -> Copied | None:
        """Returns what it has; None if it is not whole, or not there."""
        try:
            return msgspec.json.decode((self._folder / _NOTE).read_bytes(), type=Copied)
        except (FileNotFoundError, msgspec.DecodeError):  # what a machine has lost is no note
            return None

    def make(
        self,
        topic: CompactedTopic,
        throttle: Throttle,
        told: Callable[[int], None] = lambda _: None,
    ) -> Copied:
        """Copies a topic up to the ends that it was described with; begins anew.

        Args:
            topic: The topic.
            throttle: What it is held to.
            told: Is told how many records were copied, now and then.

        Raises:
            BrokerUnreachableError: The broker does not answer.
            ReplayStoppedError: It was told to stop.
            SinkUnavailableError: The copy cannot be written.
        """
        self.remove()
        archive, count = Archive(self.archive), 0
        archive.ends({})  # it is there even if the topic has nothing
        for records in _portions(compacted.read(self._bootstrap, topic), topic, throttle):
            ends: dict[tuple[str, int], int] = {}
            for record in records:
                ends[topic.name, record.partition] = record.offset + 1
            archive.append([_batch(records)], ends, {topic.name: topic.identity})
            count += len(records)
            told(count)
            rest(throttle)
        looks = compacted.look_again(self._bootstrap, topic, lambda: rest(throttle))
        gone = superseded(ArchiveScan(self.archive, [topic.name]), looks)
        ends_of = {number: end for number, (_, end) in topic.bounds.items()}
        copied = Copied(topic.name, topic.identity, ends_of, count, gone)
        write_atomically(self._folder / _NOTE, msgspec.json.encode(copied))
        return copied

    def remove(self) -> None:
        """Removes it, or what is left of it."""
        (self._folder / _NOTE).unlink(missing_ok=True)  # without it, the rest is nothing
        shutil.rmtree(self._folder, ignore_errors=True)


def superseded(scan: ArchiveScan, looks: Mapping[int, SecondLook]) -> list[Superseded]:
    """Returns the keys of which copied records are not there any more at a second look.

    Of such a key, records that came after the copied one may have gone before they were copied. So
    what was copied of it up to there says nothing, and something newer of it exists.

    Args:
        scan: The copy.
        looks: The second look at each partition.
    """
    there = {
        number: np.frombuffer(look.offsets, np.int64) if look.offsets else np.empty(0, np.int64)
        for number, look in looks.items()
    }
    found: dict[tuple[int, str], int] = {}
    if any(look.intact_from > 0 for look in looks.values()):
        for batch in scan.records(["partition", "offset", "key"]):
            partitions = integers(batch.column("partition"))
            offsets = integers(batch.column("offset"))
            for number, look in looks.items():
                gone = (partitions == number) & (offsets < look.intact_from)
                gone &= ~np.isin(offsets, there[number])
                rows = batch.filter(pa.array(gone & flags(batch.column("key").is_valid())))
                for key, offset in zip(
                    rows.column("key").to_pylist(), rows.column("offset").to_pylist(), strict=True
                ):
                    found[number, key] = max(offset, found.get((number, key), offset))
    return [Superseded(number, key, offset) for (number, key), offset in sorted(found.items())]


def copies_folder(config: JobConfig) -> Path:
    """Returns the folder of a source's copies."""
    return config.home / _FOLDER / config.source


def _portions(
    coming: Iterator[Sequence[Any]], topic: CompactedTopic, throttle: Throttle
) -> Iterator[list[Any]]:
    """Records before the ends of their partitions, as many together as are written at once."""
    waiting: list[Any] = []
    for records in coming:
        waiting += [each for each in records if each.offset < topic.bounds[each.partition][1]]
        if len(waiting) >= RECORDS_AT_ONCE:
            yield waiting
            waiting = []
        rest(throttle)
    if waiting:
        yield waiting


def _batch(records: Sequence[Any]) -> pa.RecordBatch:
    epochs = [
        next((value.decode() for name, value in each.headers if name == EPOCH_HEADER), None)
        for each in records
    ]
    headers = [[{"key": k, "value": v} for k, v in each.headers] for each in records]
    columns = [
        [each.topic for each in records],
        [each.partition for each in records],
        [each.offset for each in records],
        [each.timestamp for each in records],
        [each.key for each in records],
        [each.value for each in records],
        epochs,
        headers,
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _GIVEN, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_GIVEN)
