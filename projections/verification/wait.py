"""Waits until views have applied the rows that were read from the source."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from cdc.lsn import Lsn
from projections.errors import NotCaughtUpError, VerificationError
from projections.publishing import positions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from projections.common.throttle import Throttle
    from projections.definition.views import Store

    ViewInStore = tuple[str, Store]

POLL_S: Final = 0.2
_END: Final = "SELECT pg_current_wal_insert_lsn()::text"


class PositionWaiter:
    """Knows the position of each view in each store.

    Args:
        connection: To the source, in autocommit.
        throttle: The verification's throttle.
        deadline_s: Longest wait, seconds.
        resting: Whether nothing is written and everything is applied: there is no wait.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        throttle: Throttle,
        *,
        deadline_s: float,
        resting: bool = False,
    ) -> None:
        self._connection = connection
        self._throttle = throttle
        self._deadline_s = deadline_s
        self._resting = resting

    def end(self) -> Lsn:
        """Returns the end of the log: everything visible to any session was committed before it."""
        row = self._connection.execute(_END).fetchone()
        return Lsn.parse(str(row[0] if row else ""))

    def positions(self) -> Mapping[ViewInStore, Lsn]:
        """Returns the position of each view in each store; none if nothing was captured."""
        try:
            rows = positions.read(self._connection)
        except psycopg.errors.UndefinedTable:
            return {}
        except psycopg.Error as error:
            raise VerificationError(
                "positions of the views cannot be read", detail=type(error).__name__
            ) from None
        return {(each.view, each.store): each.applied_through for each in rows}

    def wait(self, wanted: Iterable[ViewInStore], lsn: Lsn) -> None:
        """Waits until views have applied everything up to a position.

        Raises:
            NotCaughtUpError: A view is behind after the deadline; the error names it.
        """
        behind = self.behind(wanted, lsn)
        if behind:
            raise self.late(behind, lsn)

    def behind(self, wanted: Iterable[ViewInStore], lsn: Lsn) -> set[ViewInStore]:
        """Waits like `wait`; returns the views that are behind after the deadline."""
        if self._resting:
            return set()
        waiting, deadline = set(wanted), time.monotonic() + self._deadline_s
        while True:
            reached = self.positions()
            behind = {each for each in waiting if each not in reached or reached[each] < lsn}
            if self._throttle.stopped:
                return set()
            if not behind or time.monotonic() > deadline:
                return behind
            self._throttle.rest(POLL_S)

    def late(self, behind: Iterable[ViewInStore], lsn: Lsn) -> NotCaughtUpError:
        """Returns the error for views that are behind."""
        return NotCaughtUpError(
            f"views have not reached {lsn} after {self._deadline_s:.0f} s",
            detail=", ".join(sorted(f"{view} in {store}" for view, store in behind)),
            hint="headwater status shows whether capture and the job run",
        )
