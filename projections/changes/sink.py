"""Sink: the port through which a view reaches a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import Applied, ReadSpan, RowChange
    from projections.planning.view_plan import ViewPlan


class StoredKey(NamedTuple):
    """The content of a store for a key.

    Attributes:
        version: The result of `Sink.versions`.
        documents: Its row in document form; empty without a row, more than one only if the store is
            damaged.
    """

    version: int
    documents: tuple[Mapping[str, object], ...] = ()


class Sink(Protocol):
    """Keeps the latest row of every key of a view.

    Guarantees of every implementation:

    Order: each key has the change with the greatest version ever written, regardless of the order
    in which changes, batches and writers arrive. The exception is a change with kept values: it
    must follow the change that has them, as it does in every topic. Otherwise it is refused, and no
    value is invented.

    Refusals: a change that the store cannot hold, or whose kept values no row has, is reported in
    `Applied.refused`, and its key is unchanged. All others are written.

    Duplicates: a change that is not newer than its key's version has no effect, so a batch may be
    written again, whole or in part.

    Deletes: a delete is stored with its version, also for an unknown key, and survives restarts of
    store and writer; an older change does not restore the row.

    Sweeps: once `sweep` has returned, no row of the view is older than the given version, and none
    ever returns, regardless of the older changes that arrive later through any instance. Stored
    deletes of older versions may therefore be removed. Rows of that version or newer stay.

    Durability: when `apply` returns, every change is as durable as any write that the store has
    acknowledged. When it raises, any part of the batch may have been written.

    Threads: one caller at a time per instance; several instances may write the same view, unless an
    implementation states that it takes a lock.
    """

    def prepare(self, plan: ViewPlan) -> None:
        """Creates the view's index, table or namespace if it is missing; existing content stays.

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
        """Returns, for each change, the version through which its key needs no more changes.

        That is the version of the stored row or delete, or that of the last `sweep`; 0 for a key
        that the store never had or cannot hold.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[StoredKey]:
        """Returns the present content of keys; only for views whose rows have keys.

        A row and its version are read at one moment.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def sweep(self, plan: ViewPlan, below_version: int, reads: Sequence[ReadSpan] = ()) -> int:
        """Removes every row older than a version; returns the number of removed rows.

        It may be repeated, also after an interruption. A history removes no states but ends them:
        each at the first snapshot that does not have the row.

        Args:
            plan: The view.
            below_version: Version of the rows of its newest whole-table snapshot.
            reads: Every whole-table snapshot of its table; for histories only.

        Raises:
            SinkError: The store refuses or cannot be reached; the call must be repeated.
        """
        ...

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every present row in document form, in no order.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """Reads the rows of `documents`, some thousand at a time, with only the shown columns.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def versioned(self, plan: ViewPlan) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Reads every present row with its version, in no order; not for histories.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def close(self) -> None:
        """Closes connections; the instance cannot be used afterwards."""
        ...
