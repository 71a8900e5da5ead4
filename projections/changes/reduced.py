"""Reduced: the changes of a batch of records, and RecordHeader: the position of one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cdc.errors import EnvelopeError, ValueDecodeError
from projections.changes.record import Record, RecordFailure
from projections.errors import (
    KeylessChangeError,
    NoStoredRowError,
    TruncateError,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence
    from typing import Any

    from cdc.table import TableSchema
    from foundation.errors import PlatformError
    from projections.changes.raw_change import RawChange
    from projections.changes.row_change import RowChange


SET_APART: Final = (
    EnvelopeError,
    ValueDecodeError,
    KeylessChangeError,
    TruncateError,
    NoStoredRowError,
)
"""Errors of one record, which block only its key; every other error stops the batch."""


class RecordHeader(NamedTuple):
    """The key and position of one record.

    Attributes:
        lsn: Its LSN; 0 if a snapshot of the table replaces it.
        streamed: Whether it is from the log; otherwise it is a snapshot row.
        whole: Whether it needs no other change of its key.
        version: Its version, of epoch and LSN; 0 if a snapshot of the table replaces it.
        key: Values of its key; None for a record without a key.
    """

    lsn: int
    streamed: bool
    whole: bool
    version: int = 0
    key: tuple[object, ...] | None = None


class Reduced(NamedTuple):
    """The result of a batch of records.

    Attributes:
        changes: The newest change of each key; for histories, every change.
        below: Older whole rows that must be written to the store before `changes`.
        failures: Records that could not be read, or whose unchanged values no row has.
        records: Number of records: accepted ones, filtered ones and unreadable ones.
        accepted: Number of records that count as changes.
        filtered: Number of other records: tombstones, and changes of events that do not count.
        kinds: For a table of events, the number of accepted records that add an event, by type.
        truncated: Version of the newest truncate among them; 0 if there is none.
        raws: The raw change of each of `changes`.
        begun: Where requested, the first commits of keys without a change that counts. See
            `RowChange.begun`.
    """

    changes: list[RowChange]
    below: list[RowChange]
    failures: list[RecordFailure]
    records: int
    accepted: int
    filtered: int
    kinds: Counter[str | None]
    truncated: int
    raws: list[RawChange]
    begun: Sequence[RowChange] = ()

    def sources(self) -> dict[tuple[tuple[object, ...], int], RawChange]:
        """Returns the raw changes by key and version."""
        sources = {}
        for change, raw in zip(self.changes, self.raws, strict=True):
            sources[change.key, change.version] = raw
            if raw.below is not None:  # it belongs to the change that needs it
                sources.setdefault((change.key, raw.below.version), raw)
        return sources


def missing_values(schema: TableSchema, columns: Iterable[str]) -> NoStoredRowError:
    """Returns the error for a change whose unchanged values are in no stored row."""
    return NoStoredRowError(
        f"no stored row of {schema.table} has the unchanged values of a change",
        detail="columns " + ", ".join(columns),
        hint="the change waits until the row is read again, which the job requests",
    )


def unread_record(record: Any, error: PlatformError) -> RecordFailure:
    """Returns the failure of a record that cannot be read."""
    version = error.version if isinstance(error, KeylessChangeError) else None
    return RecordFailure((Record._make(record),), error, version, None)
