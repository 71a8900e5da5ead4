"""Change: one row change, as a consumer's handler receives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdc.envelope import Operation
    from cdc.position import ChangePosition
    from cdc.table import TableName

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Acknowledger(Protocol):
    """Receives the outcome of one change."""

    def ack(self) -> bool:
        """See `Change.ack`."""
        ...

    def fail(self, error: BaseException) -> bool:
        """See `Change.fail`."""
        ...

    def park(self, error: BaseException) -> bool:
        """See `Change.park`."""
        ...

    def put_back(self) -> bool:
        """See `Change.put_back`."""
        ...


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Change:
    """A change of one row, with exact Python values.

    It may be delivered more than once: after a crash, a rebalance, or when the connector or a
    snapshot repeats itself. For one key, the change with the greater `position.version` is the
    newer one; a handler that stores that number with its result, and skips changes that are not
    greater, has the effect of each change once. Snapshot rows arrive during streaming, so they may
    also be older than changes already handled.

    The handler ends it with `ack`, `fail` or `park`. Until then no later change of its key is
    delivered.

    Attributes:
        table: The table.
        operation: The operation.
        key: Values of the key's columns; None for a table without a key and for TRUNCATE.
        before: The old row as far as the log contains it (with the default replica identity: the
            key, or nothing); None if there is none.
        after: The new row; None after a delete. A large value that an update did not change is
            `cdc.values.UNCHANGED`: the log does not repeat it.
        position: Its log position.
        transaction_id: Postgres' transaction id; None for snapshot rows.
        committed_at: Commit time of its transaction, UTC; for a snapshot row, when it was read.
        snapshot: Whether it is from a snapshot. For a delete: a snapshot of the key found no row.
        topic: Its topic.
        partition: Its partition.
        offset: Its offset.
        attempt: 1 for the first delivery, one more after each failure.
        parked: Whether it was parked, and is delivered on request.
    """

    table: TableName
    operation: Operation
    key: Mapping[str, object] | None
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None
    position: ChangePosition
    transaction_id: int | None
    committed_at: datetime
    snapshot: bool
    topic: str
    partition: int
    offset: int
    attempt: int
    parked: bool
    _outcome: Acknowledger = field(default=None)  # type: ignore[assignment]

    def ack(self) -> bool:
        """Acknowledges the change; its offset is committed once all earlier ones are done.

        Returns:
            False if the acknowledgement no longer counts: the partition moved to another member,
            which receives the change again, or it was ended before.
        """
        return self._outcome.ack()

    def fail(self, error: BaseException) -> bool:
        """Reports a failure: the change is delivered again after a wait, according to `retry`.

        After the last attempt its key is parked. Only class and code of the error are stored.

        Returns:
            False if the report no longer counts; see `ack`.

        Raises:
            RecordRefusedError: It cannot be parked now.
            TooManyParkedError: Too many keys are parked.
        """
        return self._outcome.fail(error)

    def park(self, error: BaseException) -> bool:
        """Parks its key without another attempt; see `fail`."""
        return self._outcome.park(error)

    def put_back(self) -> bool:
        """Returns it without an attempt: it is delivered again with the same count; see `ack`."""
        return self._outcome.put_back()

    def __repr__(self) -> str:
        """Shows the position, and no values."""
        place = f"{self.topic}/{self.partition}@{self.offset}"
        return f"<Change {self.operation.name} {self.table} at {place}>"


def instant(time_us: int) -> datetime:
    """Converts microseconds since 1970 to a UTC time, exactly."""
    return _EPOCH + timedelta(microseconds=time_us)
