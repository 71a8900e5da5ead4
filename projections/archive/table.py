"""Archive: every record of a source's topics, kept as a table of change events.

It is one Delta table, partitioned by the arrival day of records, and append-only. A commit has the
records of a batch and, for each partition of a topic, the offset after the last of them, as one of
Delta's application transactions. Each record is therefore archived exactly once, whatever process
is killed and whichever checkpoint is lost: records before that offset are skipped.

Records stay unchanged. An envelope is stored in its parts, which together restore the record byte
for byte; any other value is stored as it came.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from cdc.change_event import ChangeEvent
from cdc.errors import EnvelopeError
from cdc.position import VERSION_LSN_BITS
from cdc.table import TableName
from projections.common.file_lock import WriterLock
from projections.common.table_pins import pinned_versions
from projections.errors import SinkUnavailableError
from projections.publishing.published_versions import KEPT_HOURS
from projections.stores.delta.table_format import CONFIGURATION, HOOKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import date
    from pathlib import Path

    from projections.common.offsets import Offsets

COMMITS_PER_UPKEEP: Final = 50
COMPACTED_BYTES: Final = 128 << 20
"""Size of a compacted file, bytes: only compaction rewrites files."""

DAY: Final = "ingested_on"

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("recorded_at", pa.timestamp("us", "UTC")),
        ("source_table", pa.string()),
        ("op", pa.string()),
        ("epoch", pa.int32()),
        ("commit_lsn", pa.int64()),
        ("lsn", pa.int64()),
        ("total_order", pa.int64()),
        ("transaction_id", pa.int64()),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("key", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("source", pa.string()),
        ("rest", pa.string()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("raw_key", pa.binary()),
        ("raw_value", pa.binary()),
        (DAY, pa.date32()),
    ]
)
"""Columns: topic, partition, offset and arrival time; operation and log position (the commit before
the transaction, its own position, its number in the transaction); the parts of the envelope, as
JSON; and raw bytes. A key that is not text is in `raw_key`. A value is in `raw_value` if `op` is
NULL or the connector would not have written it like that."""

GIVEN: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "epoch", "headers")
"""Columns of a batch to archive; `epoch` is from the record's header."""

_KEPT: Final = ("topic", "partition", "offset", "recorded_at", "headers", DAY)
_DECODED: Final = tuple(name for name in SCHEMA.names if name not in _KEPT)

BLANK: Final = tuple(name for name in _DECODED if name not in {"key", "raw_key"})
"""Columns that are NULL in a record without a value."""

_STATISTICS: Final = SCHEMA.names[: SCHEMA.get_field_index("before")]
_HEAD, _AFTER, _SOURCE, _NULL = b'{"before":', b',"after":', b',"source":', b"null"
_NO_BEFORE, _SOURCE_OBJECT, _TRANSACTION = (
    *(b'{"before":null,"after":{', b',"source":{'),
    b'},"transaction":{',
)
_BRACE: Final = ord("}")
_ENVELOPE: Final = frozenset(
    ("before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns")
)
_WITH_ROW: Final = frozenset("cu")
_EPOCHS: Final = {str(number): number for number in range(1, 128)}
_PROPERTIES: Final = {
    **CONFIGURATION,
    # statistics only of columns by which files are skipped
    "delta.dataSkippingStatsColumns": ",".join(_STATISTICS),
}


class _Parts(msgspec.Struct):
    before: msgspec.Raw = msgspec.Raw(_NULL)
    after: msgspec.Raw = msgspec.Raw(_NULL)
    source: msgspec.Raw = msgspec.Raw(_NULL)


@dataclass(frozen=True, slots=True)
class ArchiveRetention:
    """How long the archive keeps records.

    Attributes:
        days: Whole days; None for no limit.
    """

    days: int | None = None

    def first_day(self, today: date) -> date | None:
        """Returns the first day whose records are kept; None for all."""
        return None if self.days is None else today - timedelta(days=self.days)


class Archive:
    """The archive of one source.

    It has one writer, and erasures: every commit holds a lock.

    Args:
        folder: Folder of its table.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ends(
        self, partitions: Mapping[tuple[str, int], str], version: int | None = None
    ) -> Offsets:
        """Returns the offset after the last archived record of each partition that has any.

        Args:
            partitions: Topic, partition and Kafka's topic id, of each partition.
            version: Version of the table; None for the newest.

        Raises:
            SinkUnavailableError: It cannot be read.
        """
        try:
            table = self._table() if version is None else DeltaTable(str(self._folder), version)
            ends = {
                place: table.transaction_version(application(place, identity))
                for place, identity in partitions.items()
            }
        except (DeltaError, OSError) as error:
            raise _unavailable(error) from None
        return {place: offset for place, offset in ends.items() if offset is not None}

    def append(
        self,
        batches: Iterable[pa.RecordBatch],
        ends: Offsets,
        identities: Mapping[str, str],
        retention: ArchiveRetention = ArchiveRetention(),
    ) -> int:
        """Adds the records of a batch that are not archived yet, in one commit.

        Args:
            batches: The records, with the columns `GIVEN`.
            ends: Offset after the last record of each partition in the batch.
            identities: Kafka's id of each topic.
            retention: How long records are kept.

        Returns:
            The number of records added.

        Raises:
            SinkUnavailableError: The table cannot be read or written.
        """
        names = {place: identities.get(place[0], "") for place in ends}
        there = self.ends(names)
        if all(there.get(place, 0) >= end for place, end in ends.items()):
            return 0
        today = datetime.now(UTC).date()
        added = 0
        failure: list[Exception] = []

        def rows() -> Iterator[pa.RecordBatch]:
            nonlocal added
            try:
                for batch in batches:
                    made = _rows(batch, there, today)
                    added += made.num_rows
                    yield made
            except (
                Exception
            ) as error:  # an error that is raised through the library loses its class
                failure.append(error)
                raise

        marks = [
            Transaction(application(place, names[place]), end)
            for place, end in ends.items()
            if end > there.get(place, 0)
        ]
        try:
            with archive_lock(self._folder):
                table = self._table()
                properties = CommitProperties(app_transactions=marks, max_commit_retries=0)
                write_deltalake(
                    table,
                    pa.RecordBatchReader.from_batches(SCHEMA, rows()),
                    mode="append",
                    commit_properties=properties,
                    post_commithook_properties=HOOKS,
                )
                if table.version() % COMMITS_PER_UPKEEP == 0:
                    self.maintain(retention, today)
        except (DeltaError, OSError) as error:
            if failure:
                raise failure[0] from None
            raise _unavailable(error) from None
        return added

    def maintain(self, retention: ArchiveRetention, today: date) -> None:
        """Merges small files, and removes days past the retention.

        Raises:
            DeltaError: The table cannot be written.
        """
        table = self._table()
        first = retention.first_day(today)
        if first is not None:
            table.delete(f"\"{DAY}\" < DATE '{first.isoformat()}'")
        # an older day's files were merged when it was new
        since = (today - timedelta(days=1)).isoformat()
        table.optimize.compact(target_size=COMPACTED_BYTES, partition_filters=[(DAY, ">=", since)])
        try:
            table.vacuum(
                retention_hours=KEPT_HOURS,
                enforce_retention_duration=False,
                dry_run=False,
                keep_versions=pinned_versions(self._folder) or None,
            )
        except DeltaError as error:
            # rather too many files than a missing one
            _log.warning("archive is not vacuumed: %s", type(error).__name__)

    def _table(self) -> DeltaTable:
        path = str(self._folder)
        if DeltaTable.is_deltatable(path):
            table = DeltaTable(path)
            if "raw_value" in {field.name for field in table.schema().fields}:
                return table
            # records that an earlier release stored undivided
            self._folder.rename(self._folder.with_name(f"{self._folder.name}.before"))
        return DeltaTable.create(path, SCHEMA, partition_by=[DAY], configuration=_PROPERTIES)


def archive_lock(folder: Path) -> WriterLock:
    """Returns the lock of an archive's writers.

    Args:
        folder: Folder of the archive.
    """
    return WriterLock(folder.with_name(f".{folder.name}.lock"), wait=True)


def record_value(row: Mapping[str, Any]) -> bytes | None:
    """Returns the value of an archived record, byte for byte; None for a tombstone.

    Args:
        row: At least `before`, `after`, `source`, `rest` and `raw_value`.
    """
    if row["source"] is None:
        value: bytes | None = row["raw_value"]
        return value
    before, after = (
        _NULL if row[name] is None else row[name].encode() for name in ("before", "after")
    )
    source, rest = row["source"].encode(), row["rest"].encode()
    return b"".join((_HEAD, before, _AFTER, after, _SOURCE, source, rest))


def record_key(row: Mapping[str, Any]) -> bytes | None:
    """Returns the key of an archived record, byte for byte; see `record_value`."""
    key: bytes | None = row["raw_key"] if row["key"] is None else row["key"].encode()
    return key


def _rows(batch: pa.RecordBatch, there: Offsets, today: date) -> pa.RecordBatch:
    """Splits records into columns, without those already archived."""
    positions = zip(*(batch.column(name).to_pylist() for name in GIVEN[:3]), strict=True)
    new = [offset >= there.get((topic, number), 0) for topic, number, offset in positions]
    if not all(new):
        batch = batch.filter(pa.array(new))
    encoded = (batch.column(name).to_pylist() for name in ("key", "value", "epoch"))
    rows = [_decoded(*record) for record in zip(*encoded, strict=True)]
    columns = dict(zip(_DECODED, zip(*rows, strict=True), strict=True)) if rows else {}
    copied = {name: batch.column(name) for name in ("topic", "partition", "offset", "headers")}
    copied["recorded_at"] = batch.column("timestamp")
    copied[DAY] = pa.array([today] * batch.num_rows, pa.date32())
    arrays = [
        copied[field.name].cast(field.type)
        if field.name in copied
        else pa.array(columns.get(field.name, ()), field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _decoded(key: bytes | None, value: bytes | None, epoch: str | None) -> tuple[Any, ...]:
    """Returns the values of the columns `_DECODED`.

    The result equals that of `_record`, in half the time: it reads only what the connector's usual
    form needs, and leaves any other form to `_record`.
    """
    try:
        return _usual(key, value, epoch)
    except (AttributeError, KeyError, TypeError, ValueError):
        return tuple(_record(key, value, epoch).values())


def _usual(key: Any, value: Any, epoch: Any) -> tuple[Any, ...]:
    """Returns the same for a record of the usual form.

    Raises:
        ValueError: It has another form; this may also raise `KeyError`, `TypeError` or
            `AttributeError`.
    """
    fields = orjson.loads(value)
    source, operation, after = fields["source"], fields["op"], fields["after"]
    if after is None or operation not in _WITH_ROW or fields.keys() != _ENVELOPE:
        raise ValueError
    commit, lsn = orjson.loads(source["sequence"])
    commit_lsn, own_lsn = int(commit or 0), int(lsn)
    committed_at_us, transaction = source["ts_us"], source["txId"]
    order = fields["transaction"]["total_order"]
    if (commit_lsn | own_lsn) >> VERSION_LSN_BITS or not committed_at_us:
        raise ValueError
    if not all(type(number) is int for number in (committed_at_us, transaction, order)):
        raise ValueError
    if not orjson.loads(key).keys():
        raise ValueError
    # quotes in a user's data are escaped, so neither text occurs in it, only in the envelope
    end = value.index(_SOURCE_OBJECT)
    rest = value.index(_TRANSACTION, end) + 1
    if not value.startswith(_NO_BEFORE) or value[end - 1] != _BRACE:
        raise ValueError
    if value.find(_SOURCE_OBJECT, end + 1) >= 0 or value.find(_TRANSACTION, rest) >= 0:
        raise ValueError
    return (
        _table_name(source["schema"], source["table"]),
        operation,
        _EPOCHS[epoch],
        commit_lsn,
        own_lsn,
        order,
        transaction,
        committed_at_us,
        key.decode(),
        None,
        value[len(_NO_BEFORE) - 1 : end].decode(),
        value[end + len(_SOURCE) : rest].decode(),
        value[rest:].decode(),
        None,
        None,
    )


def _record(key: bytes | None, value: bytes | None, epoch: str | None) -> dict[str, Any]:
    record: dict[str, Any] = dict.fromkeys(_DECODED)
    record["key"] = _text(key)
    if record["key"] is None:
        record["raw_key"] = key
    parts = None if value is None else _parts(value)
    if parts is None:
        record["raw_value"] = value
    else:
        record |= parts
    if value is None or epoch is None or not epoch.isdigit():
        return record
    try:
        event = ChangeEvent.parse(key, value, int(epoch))
    except EnvelopeError:
        return record
    at = event.position
    record |= {
        "source_table": str(event.table),
        "op": str(event.operation),
        "epoch": at.epoch,
        "commit_lsn": at.commit_lsn.value,
        "lsn": at.lsn.value,
        "total_order": at.order,
        "transaction_id": event.transaction_id,
        "committed_at": event.committed_at_us,
    }
    return record


def _parts(value: bytes) -> dict[str, str | None] | None:
    """Splits an envelope; None for a value that the parts would not restore exactly."""
    try:
        parts = _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    before, after, source = bytes(parts.before), bytes(parts.after), bytes(parts.source)
    front = b"".join((_HEAD, before, _AFTER, after, _SOURCE, source))
    if not value.startswith(front) or source == _NULL:
        return None
    try:
        return {
            "before": None if before == _NULL else before.decode(),
            "after": None if after == _NULL else after.decode(),
            "source": source.decode(),
            "rest": value[len(front) :].decode(),
        }
    except UnicodeDecodeError:
        return None


_DECODER: Final = msgspec.json.Decoder(_Parts)
_log: Final = logging.getLogger(__name__)


@cache
def _table_name(schema: str, name: str) -> str:
    return str(TableName(schema, name))


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def application(place: tuple[str, int], identity: str) -> str:
    """Returns the name under which a table records the end of a topic's partition."""
    topic, partition = place
    return f"headwater/{topic}@{identity}/{partition}"


def _unavailable(error: Exception) -> SinkUnavailableError:
    return SinkUnavailableError(
        "the archive cannot be read or written", detail=type(error).__name__
    )
