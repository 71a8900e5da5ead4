"""The stores of one view during a comparison: a failing store is left out, others continue."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from projections.errors import NotCaughtUpError, ProjectionError, SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from projections.changes.sink import Sink
    from projections.definition.views import Store

    LeftOut = Callable[[Store, ProjectionError], None]

OF_A_STORE = (SinkError, NotCaughtUpError)
"""Errors of a single store, or of a view in it; they do not concern other stores."""


class ComparedStores:
    """The stores in which a view is compared.

    Args:
        sinks: Sinks of the stores that are not left out.
        left_out: Receives each store that is left out, and why. Without it, the error is raised.

    Attributes:
        sinks: Sinks of the stores that are not left out.
    """

    def __init__(self, sinks: Mapping[Store, Sink], left_out: LeftOut | None = None) -> None:
        self.sinks = dict(sinks)
        self._left_out = left_out

    def __contains__(self, store: object) -> bool:
        return store in self.sinks

    def __iter__(self) -> Iterator[Store]:
        return iter(list(self.sinks))

    @contextmanager
    def each(self, store: Store) -> Iterator[None]:
        """Runs the block for a store, and leaves the store out if it fails."""
        try:
            yield
        except OF_A_STORE as error:
            self.leave_out(store, error)

    @contextmanager
    def every(self) -> Iterator[None]:
        """Runs the block for all stores, and leaves out those whose error it raises."""
        try:
            yield
        except OF_A_STORE as error:
            if self._left_out is None:
                raise
            for store in self:
                self.leave_out(store, error)

    def leave_out(self, store: Store, error: ProjectionError) -> None:
        """Leaves a store out from now on.

        Raises:
            ProjectionError: The error, without a receiver.
        """
        if self._left_out is None:
            raise error
        del self.sinks[store]
        self._left_out(store, error)
