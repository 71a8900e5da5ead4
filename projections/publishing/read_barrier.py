"""ReadBarrier: waits until a view has a given write.

The source has all that is needed: the position of each view in each store, and the position up to
which the log was read. A reader therefore needs neither Kafka nor the job, and the error names the
stage that is behind.

Lag: how long a commit takes to reach each view and store.

It is measured end to end, not computed from the components' own reports: these freeze when a
component hangs, and grow while nothing is written. A view that misses the deadline is reported with
its stage.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from cdc.lsn import Lsn
from cdc.postgres import committed
from foundation.errors import EXIT_UNHEALTHY
from foundation.waiting import looks
from projections.definition.views import Store
from projections.errors import NotCaughtUpError
from projections.publishing import positions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    import psycopg

    from cdc.position_token import PositionToken
    from cdc.postgres.captures import Capture
    from projections.publishing.positions import ViewPosition

TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.05
_NOW: Final = "SELECT clock_timestamp()"
_SLOT: Final = (
    "SELECT active, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
)
_PAUSED: Final = "SELECT paused ->> 'code' FROM headwater.view_shapes WHERE view = ANY(%s)"


class ChangeStage(StrEnum):
    """The stage of a change on its way to a store; determined on request, stored nowhere."""

    CAPTURE = "capture"  # not in Kafka: no connector reads the log, or the connector lags
    PAUSED = "paused"  # its view, or an input of it, is paused and waits for a person
    BATCH = "batch"  # in Kafka: the job has not applied it to the store
    DERIVATION = "derivation"  # in the tables of the view's inputs, not in its own
    DELIVERY = "delivery"  # in the view's table, not in the store


@dataclass(frozen=True, slots=True)
class Lateness:
    """A view that is behind in a store, and its distance.

    Attributes:
        view: The view.
        store: The store.
        stage: The stage that has not been completed.
        applied_through: The view's position in the store; None if it has none.
        behind_bytes: Distance in the log from there to the awaited position.
        still_s: Time since the view's position last moved, seconds; None if it has none.
        cause: More about the cause; empty if unknown.
    """

    view: str
    store: Store
    stage: ChangeStage
    applied_through: Lsn | None
    behind_bytes: int
    still_s: float | None
    cause: str = ""

    def __str__(self) -> str:
        by = f"{self.behind_bytes:,} bytes of the log behind"
        since = "" if self.still_s is None else f", its position is {self.still_s:.1f} s old"
        cause = f"; {self.cause}" if self.cause else ""
        return f"{self.view} in {self.store}: {self.stage}, {by}{since}{cause}"


class BehindError(NotCaughtUpError):
    """A view did not reach the position that a reader waits for in time.

    Attributes:
        late: For each store, the stage that is behind, and by how much.
    """

    code: ClassVar[str] = "HW-P033"
    exit_code = EXIT_UNHEALTHY
    late: tuple[Lateness, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadBarrier:
    """Waits for one view.

    Attributes:
        source: Name of the source.
        view: The view.
        stores: The stores that keep it.
        inputs: Its inputs, if it is a derived view.
    """

    source: str
    view: str
    stores: frozenset[Store]
    inputs: tuple[str, ...] = ()

    def wait(
        self,
        connection: psycopg.Connection[Any],
        token: PositionToken,
        *,
        stores: Collection[Store] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Waits until the view has everything committed before a token.

        Args:
            connection: To the source, in autocommit.
            token: The position in the log.
            stores: The stores to wait for; empty for all.
            timeout_s: Longest wait, seconds.

        Raises:
            BehindError: A store is behind after that time; the error names the stage.
            TokenError: The token does not belong to this source.
        """
        wanted = frozenset(stores) or self.stores
        for _ in looks(timeout_s, POLL_S):
            seen = look(connection, token, self.source)
            late = sorted(store for store in wanted if not seen.reached(self.view, store))
            if not late:
                return
        raise _behind([self.lateness(seen, store) for store in late])

    def lateness(self, seen: SourcePositions, store: Store) -> Lateness:
        """Returns the stage that is behind in a store that has not reached the awaited position."""
        own = seen.positions.get((self.view, store))
        stage, cause = self._stage(seen)
        if own is None:
            behind = seen.wanted.value - seen.capture.slot_made_at.value
            return Lateness(self.view, store, stage, None, max(behind, 0), None, cause)
        behind = seen.wanted.value - own.applied_through.value
        still_s = (seen.now() - own.updated_at).total_seconds()
        return Lateness(self.view, store, stage, own.applied_through, behind, still_s, cause)

    def _stage(self, seen: SourcePositions) -> tuple[ChangeStage, str]:
        if seen.capture.lost is not None:
            return ChangeStage.CAPTURE, f"the capture has lost changes, {seen.capture.lost}"
        if code := seen.paused((self.view, *self.inputs)):
            return ChangeStage.PAUSED, code
        if self.inputs and seen.reached(self.view, Store.TABLE):
            return ChangeStage.DELIVERY, ""
        behind = [name for name in self.inputs if not seen.reached(name, Store.TABLE)]
        if self.inputs and not behind:
            return ChangeStage.DERIVATION, ""
        if cause := seen.unread():
            return ChangeStage.CAPTURE, cause
        return ChangeStage.BATCH, f"{', '.join(behind)} not there either" if behind else ""


def look(connection: psycopg.Connection[Any], token: PositionToken, source: str) -> SourcePositions:
    """Reads the position of everything from the source, relative to a token.

    Raises:
        TokenError: The token does not belong to this source.
    """
    capture = committed.check(connection, token, source)
    by_view = {
        (p.view, p.store): p for p in positions.read(connection) if positions.of_source(p, source)
    }
    return SourcePositions(connection, capture, by_view, token.lsn)


@dataclass(frozen=True, slots=True)
class SourcePositions:
    """Positions in the source at one moment.

    Attributes:
        connection: For further queries.
        capture: State of the source's capture.
        positions: The position of each view in each store.
        wanted: The position to reach.
    """

    connection: psycopg.Connection[Any]
    capture: Capture
    positions: Mapping[tuple[str, Store], ViewPosition]
    wanted: Lsn

    def reached(self, view: str, store: Store) -> bool:
        """Returns whether a view has reached the position in a store."""
        position = self.positions.get((view, store))
        return position is not None and position.applied_through >= self.wanted

    def paused(self, views: Sequence[str]) -> str | None:
        """Returns the error code of the first paused view."""
        rows = self.connection.execute(_PAUSED, (list(views),)).fetchall()
        return next((str(code) for (code,) in rows if code is not None), None)

    def unread(self) -> str | None:
        """Returns why the log was not read up to the position; None if it was."""
        if any(each.applied_through >= self.wanted for each in self.positions.values()):
            return None
        slot = self.capture.slot
        row = self.connection.execute(_SLOT, (slot,)).fetchone()
        if row is None:
            return f"there is no slot {slot}"
        active, flushed = row
        if flushed is not None and Lsn.parse(flushed) >= self.wanted:
            return None
        reason = f"read up to {flushed}" if active else "no connector reads the log"
        return f"{reason}, slot {slot}"

    def now(self) -> datetime:
        """Returns the source's time."""
        row = self.connection.execute(_NOW).fetchone()
        if row is None:
            raise AssertionError
        source_time: datetime = row[0]
        return source_time


def _behind(late: Sequence[Lateness]) -> BehindError:
    hints = {
        ChangeStage.CAPTURE: "headwater source status shows the reason",
        ChangeStage.PAUSED: "headwater view status shows why; then headwater view resume",
        ChangeStage.BATCH: "if headwater status shows the job running, wait longer",
        ChangeStage.DERIVATION: "headwater view explain shows its strategy; else wait longer",
        ChangeStage.DELIVERY: (
            "if headwater view status shows the store being written, wait longer"
        ),
    }
    error = BehindError(
        "a view did not reach the position in time",
        detail="; ".join(map(str, late)),
        hint=hints[late[0].stage],
    )
    error.late = tuple(late)
    return error


_STAGES_S: Final = 1.0
"""Seconds between two determinations of the stage during a wait."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a view in a store.

    Attributes:
        view: The view.
        store: The store.
        seconds: Time until it had everything committed before the measurement; None after a
            time-out.
        late: The stage that is behind in that case.
    """

    view: str
    store: Store
    seconds: float | None = None
    late: Lateness | None = None


def measure(
    connection: psycopg.Connection[Any],
    token: PositionToken,
    views: Sequence[ReadBarrier],
    timeout_s: float,
) -> list[Lag]:
    """Waits for views in all their stores, and returns how long each took.

    It does not wait for paused views once all others are done.

    Args:
        connection: To the source, in autocommit.
        token: A position taken just before.
        views: The views, all of one source.
        timeout_s: Longest wait, seconds.

    Raises:
        TokenError: The token does not belong to this source.
    """
    began = time.monotonic()
    stages_at = began + _STAGES_S
    late: dict[tuple[str, Store], Lateness] = {}
    took: dict[tuple[str, Store], float] = {}
    waited = {(view.view, store): view for view in views for store in view.stores}
    while took.keys() != waited.keys():
        seen = look(connection, token, token.source)
        now = time.monotonic()
        there = [place for place in waited if place not in took and seen.reached(*place)]
        took |= dict.fromkeys(there, now - began)
        if now < min(stages_at, began + timeout_s):
            time.sleep(POLL_S)
            continue
        # determining a stage takes several queries
        stages_at = now + _STAGES_S
        late = {
            place: view.lateness(seen, place[1])
            for place, view in waited.items()
            if place not in took
        }
        if now >= began + timeout_s or all(
            each.stage is ChangeStage.PAUSED for each in late.values()
        ):
            break
    return [
        Lag(*place, took.get(place), None if place in took else late.get(place))
        for place in sorted(waited)
    ]
