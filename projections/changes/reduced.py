"""Reduced: the result of a batch of records, and what one record says of itself."""

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
"""Errors of one record, which hold up its key only; every other error stops the batch."""


class RecordHeader(NamedTuple):
    """What one record says, as far as its key and place go.

    Attributes:
        lsn: Its position.
        streamed: Whether it comes from the log; otherwise it was read from the table.
        whole: Whether it needs no other change of its key.
        version: Its position in the log; 0 if a read of the table takes its place.
        key: Values of its key; None without one.
    """

    lsn: int
    streamed: bool
    whole: bool
    version: int = 0
    key: tuple[object, ...] | None = None


class Reduced(NamedTuple):
    """What a batch of records comes to.

    Attributes:
        changes: The newest change of each key; for histories, every change.
        below: Older whole rows that the store has to be given before `changes`.
        failures: Records that could not be read, or whose kept values no row has.
        records: Records taken: those below, and one for each of `failures` that was not read.
        accepted: Those that count.
        filtered: Those that do not: tombstones, and changes of events passed over.
        kinds: Of a table of events, how many of those accepted add an event, by type.
        truncated: Version of the newest truncate among them; 0 if there is none.
        raws: What each of `changes` was made from.
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
        """Returns what each change was made from, by its key and version."""
        found = {}
        for change, raw in zip(self.changes, self.raws, strict=True):
            found[change.key, change.version] = raw
            if raw.below is not None:  # it goes with the change that needs it
                found.setdefault((change.key, raw.below.version), raw)
        return found


def missing_values(schema: TableSchema, kept: Iterable[str]) -> NoStoredRowError:
    """Returns the error for a change whose unchanged values no row has."""
    return NoStoredRowError(
        f"no stored row of {schema.table} has the unchanged values of a change",
        detail="columns " + ", ".join(kept),
        hint="the change waits until the row is read again, which the job requests",
    )


def unread_record(record: Any, error: PlatformError) -> RecordFailure:
    """Returns the failure of a record that cannot be read."""
    version = error.version if isinstance(error, KeylessChangeError) else None
    return RecordFailure((Record._make(record),), error, version, None)
