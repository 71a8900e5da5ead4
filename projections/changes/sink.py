"""Sink: the port through which a view reaches a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import Applied, ReadSpan, RowChange
    from projections.planning.view_plan import ViewPlan


class StoredKey(NamedTuple):
    """What a store has of a key.

    Attributes:
        version: As `Sink.versions` tells it.
        documents: Its row in document form; none where there is none, and more than one only if
            the store is damaged.
    """

    version: int
    documents: tuple[Mapping[str, object], ...] = ()


class Sink(Protocol):
    """Keeps the latest row of every key of a view.

    Guarantees of every implementation:

    Order: each key holds the change with the greatest version ever given, whatever the order in
    which changes, batches and writers arrive. A change with kept values is the exception: it must
    come after the change that has them, as it does in every topic. One that comes without is
    refused; nothing is made up.

    Refusals: a change that the store cannot hold, or whose kept values no row has, is reported in
    `Applied.refused` and leaves its key as it was. All others are written.

    Duplicates: a change that is not newer than what the key holds changes nothing, so giving a
    batch again, whole or in part, has no effect.

    Deletes: a delete is remembered with its version, also for a key that was never seen, and
    outlives a restart of store and writer; an older change does not bring the row back.

    Sweeps: once `sweep` has returned, no row of the view is older than the version it was given,
    and none ever comes back, whatever older changes arrive later and through which instance. So
    the memories of older deletes may go as well. Rows of that version or newer stay.

    Durability: when `apply` returns, every change is in the store as safely as the store keeps
    anything it acknowledged. When it raises, any part of the batch may have been written.

    Threads: one caller at a time per instance; several instances may write the same view, except
    where an implementation says that it takes a lock.
    """

    def prepare(self, plan: ViewPlan) -> None:
        """Makes the view's place in the store unless it is there; what it has stays.

        Raises:
            SinkError: The store refuses or cannot be reached.
        """
        ...

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes, at most one per key.

        Raises:
            SinkError: The store refuses or cannot be reached; any part may have been written.
        """
        ...

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """Returns for each change up to which version its key needs no more changes.

        That is the version of the stored row or delete, or what `sweep` was given last; 0 of a key
        that was never seen, or that the store cannot hold.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[StoredKey]:
        """Returns what each of some keys has now; of a view whose rows have keys.

        A row and its version are of one moment.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def sweep(self, plan: ViewPlan, below_version: int, reads: Sequence[ReadSpan] = ()) -> int:
        """Removes every row older than a version; returns how many there were.

        It may be repeated, also after an interruption. A history ends states and removes none, each
        by the first read that does not have it.

        Args:
            plan: The view.
            below_version: The version: that of the rows of its newest whole-table snapshot.
            reads: Every whole-table snapshot of its table; for histories only.

        Raises:
            SinkError: The store refuses or cannot be reached; the call has to be repeated.
        """
        ...

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row in its document form, in no order.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """Reads the same as `documents`, some thousand rows at a time, without what a view hides.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def versioned(self, plan: ViewPlan) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Reads every live row with its version, in no order; not of a history.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def close(self) -> None:
        """Lets go of connections; the instance is of no use afterwards."""
        ...
