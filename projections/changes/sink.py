"""Sink: the port through which views are written to a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import Applied, ReadSpan, RowChange
    from projections.planning.view_plan import ViewPlan


class StoredKey(NamedTuple):
    """What a store has of one key.

    Attributes:
        version: The key's version, as `Sink.versions` returns it.
        documents: The key's row in document form: none if it has no row, and more than one only if
            the store is damaged.
    """

    version: int
    documents: tuple[Mapping[str, object], ...] = ()


class Sink(Protocol):
    """Stores the latest row of every key of a view.

    Guarantees of every implementation:

    Order: the change with the greatest version determines the row of its key, whatever the order in
    which changes, batches and writers arrive. A change with `unchanged_columns` takes their values
    from the stored row. It must therefore follow the change that wrote them, as it does in every
    topic; otherwise it is refused.

    Refusals: a change that the store cannot hold, or whose unchanged columns have values in no
    stored row, is returned in `Applied.refused`, and the stored row of its key stays as it was. All
    other changes are written.

    Duplicates: a change that is not newer than its key's version has no effect, so a batch may be
    written repeatedly, completely or in part.

    Deletes: a delete is stored with its version, even if the store never had the key, and survives
    restarts of store and writer. An older change does not restore the row.

    Sweeps: once `sweep` has returned, the view has no row older than the given version, and never
    will have, even if an instance applies older changes later. The store may therefore remove
    deletes of older versions. Rows of that version or newer stay.

    Durability: when `apply` returns, every change is as durable as any write that the store
    acknowledges. When it raises, any part of the batch may have been written.

    Threads: an instance has one caller at a time. Several instances may write the same view, unless
    an implementation states that it takes a lock.
    """

    def prepare(self, plan: ViewPlan) -> None:
        """Creates the view's index, table or namespace if it is missing; keeps existing content.

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
        """Returns, for each change, the version of its key in the store.

        Changes of the key up to that version have no effect. It is the version of the stored row
        or delete, or the one below that of the last `sweep` if that is greater; 0 for a key that
        the store never had or cannot hold.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[StoredKey]:
        """Returns the present rows of keys; only for views whose rows have keys.

        A row and its version are of the same moment.

        Raises:
            SinkError: The store cannot be read.
        """
        ...

    def sweep(self, plan: ViewPlan, below_version: int, reads: Sequence[ReadSpan] = ()) -> int:
        """Removes every row older than a version; returns the number of removed rows.

        The call may be repeated, for example after an interruption. A history does not remove
        states: it ends each one at the first snapshot that lacks the row.

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
        """Reads the rows of `documents` in batches of some thousand, only columns of the view.

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
