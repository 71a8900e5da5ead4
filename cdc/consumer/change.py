"""Change: one row change as a consumer's handler gets it."""

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
    """Takes what became of one change."""

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

    It may come more than once: after a crash, after a rebalance, when the connector or a snapshot
    repeats itself. Of one key, the change with the greater `position.version` is the newer one; a
    handler that keeps that number beside what it writes, and passes over what is not greater, has
    the effect of each change once. Rows that a snapshot read come while the stream goes on, so
    they too may be older than what was handled before them.

    The handler ends it with one of `ack`, `fail` and `park`. Until then no later change of its key
    is handed out.

    Attributes:
        table: Where it happened.
        operation: What happened.
        key: Values of the key's columns; None for a table without a key and for TRUNCATE.
        before: The old row as far as the log has it (with the default replica identity: the key,
            or nothing); None where there is none.
        after: The new row; None after a delete. A large value that an update did not touch is
            `cdc.values.UNCHANGED`: the log does not repeat it.
        position: Its place in the source's order.
        transaction_id: Postgres' transaction id; None for rows that a snapshot read.
        committed_at: When its transaction was committed, UTC; for a row that a snapshot read, when
            it was read.
        snapshot: Whether a snapshot read it. A delete that was read: a targeted read found no row
            of that key.
        topic: Where it came from.
        partition: Likewise.
        offset: Likewise.
        attempt: 1 the first time it is handed out, one more after each failure.
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
        """Says that it is handled. It is committed with all before it in its partition.

        Returns:
            False if that counts no more: its partition has gone to another member, which gets it
            again, or it was ended before.
        """
        return self._outcome.ack()

    def fail(self, error: BaseException) -> bool:
        """Says that handling it failed: it is handed out again after a wait, as `retry` says.

        After the last attempt its key is parked. Only class and code of the error are stored.

        Returns:
            False if that counts no more; see `ack`.

        Raises:
            RecordRefusedError: It cannot be parked now.
            TooManyParkedError: Too many keys are parked.
        """
        return self._outcome.fail(error)

    def park(self, error: BaseException) -> bool:
        """Parks its key without another attempt; see `fail`."""
        return self._outcome.park(error)

    def put_back(self) -> bool:
        """Hands it back untried: it is delivered again, and no attempt is counted; see `ack`."""
        return self._outcome.put_back()

    def __repr__(self) -> str:
        """Says where it is, and nothing of what is in it."""
        place = f"{self.topic}/{self.partition}@{self.offset}"
        return f"<Change {self.operation.name} {self.table} at {place}>"


def instant(time_us: int) -> datetime:
    """Returns the time that is so many microseconds after 1970 began, exactly."""
    return _EPOCH + timedelta(microseconds=time_us)
