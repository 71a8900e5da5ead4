"""Archives of records, as the job's archiver writes them: in batches, compacted at times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from projections.archive.table import Archive, ArchiveRetention
from projections.changes.record import OLD_KEY_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from projections.changes.record import Record

GIVEN = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("epoch", pa.string()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
SENT_AT = datetime(2026, 11, 20, 10, tzinfo=UTC)


def archived(
    folder: Path,
    topic: str,
    records: Sequence[Record],
    sent_at: Any = SENT_AT,
    identity: str = "first",
) -> None:
    """Adds a batch of one topic's records to an archive."""
    if not records:
        return
    rows = [
        {
            "topic": topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": sent_at,
            "key": record.key,
            "value": record.value,
            "epoch": record.epoch,
            "headers": _headers(record),
        }
        for record in records
    ]
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        place = topic, record.partition
        ends[place] = max(ends.get(place, 0), record.offset + 1)
    batch = pa.RecordBatch.from_pylist(rows, schema=GIVEN)
    Archive(folder).append([batch], ends, {topic: identity})


def compacted(folder: Path) -> None:
    """Does the archive's upkeep."""
    Archive(folder).maintain(ArchiveRetention(), datetime.now(UTC).date())


def _headers(record: Record) -> list[dict[str, Any]]:
    said = {} if record.epoch is None else {"headwater.epoch": record.epoch.encode()}
    if record.old_key is not None:
        said[OLD_KEY_HEADER] = record.old_key
    return [{"key": name, "value": value} for name, value in said.items()]
