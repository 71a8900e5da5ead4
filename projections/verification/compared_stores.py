"""The stores of one view while it is compared: one that fails is left out, and the others go on."""

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
"""What is wrong with a store, or with a view there: with others it says nothing of them."""


class ComparedStores:
    """The stores in which a view is compared.

    Args:
        sinks: Sinks of those that were not left out yet.
        left_out: Receives a store that is left out, and why. Without it, that is raised.

    Attributes:
        sinks: Of those that were not left out yet.
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
        """Does something with a store, which is left out if that fails by its fault."""
        try:
            yield
        except OF_A_STORE as error:
            self.leave_out(store, error)

    @contextmanager
    def every(self) -> Iterator[None]:
        """Does something with all of them, which are left out if that fails for one like them."""
        try:
            yield
        except OF_A_STORE as error:
            if self._left_out is None:
                raise
            for store in self:
                self.leave_out(store, error)

    def leave_out(self, store: Store, error: ProjectionError) -> None:
        """Leaves a store out from here on.

        Raises:
            ProjectionError: The error, without a receiver.
        """
        if self._left_out is None:
            raise error
        del self.sinks[store]
        self._left_out(store, error)
