"""Batch: one transaction that handles the next events and moves the checkpoint with them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
import structlog

from eventstore.errors import CheckpointBeyondHeadError, SubscriptionError, UndeclaredError
from eventstore.model.event import StoredEvent
from eventstore.subscription import statement
from eventstore.subscription.reporting import report
from eventstore.subscription.retry import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventstore.subscription.delivery import HeldEffect
    from eventstore.subscription.handling import Handling
    from eventstore.subscription.session import RunnerSession
    from eventstore.subscription.subscription import Subscription

_log = structlog.get_logger(__name__)

_EMPTY_EVERY_S: Final = 0.05
"""Shortest interval between moves of a checkpoint that pass no event of the subscription."""

_PAGE_MAX: Final = 10_000


class Look(NamedTuple):
    """The log as a batch has read it.

    Attributes:
        head: The last assigned global position.
        mark: The high-water mark.
        behind: Whether more events can be handled immediately.
        due_in_s: Seconds until the next retry is due; None if there is none.
    """

    head: int
    mark: int
    behind: bool = False
    due_in_s: float | None = None


class _Partition(NamedTuple):
    """A row of eventstore.subscriptions."""

    partition: int
    partitions: int
    global_position: int
    replay_until: int
    replay_through: int | None
    resume_at: int | None
    earlier: list[list[int]] | None


@dataclass(slots=True)
class _Outcome:
    """The result of a batch so far.

    Attributes:
        reached: Position up to which the checkpoint may move.
        handled: Number of handled events.
        stopped: Whether the batch ended before the end of its page.
        parked: Parked streams.
        given_up: Number of parked streams that are not retried automatically.
        parking: Events to park: event, live, failure, seconds until the retry.
        effects: Requested effects, by event.
        acted: Number of events with effects.
        full: Whether the batch ended early because too many streams are parked.
        halt: The error that stops the subscription after this batch.
    """

    reached: int
    parked: set[str]
    given_up: int
    handled: int = 0
    stopped: bool = False
    full: bool = False
    parking: list[tuple[StoredEvent, bool, Failure | None, float | None]] = field(
        default_factory=list
    )
    effects: list[tuple[StoredEvent, list[HeldEffect]]] = field(default_factory=list)
    acted: int = 0
    halt: UndeclaredError | None = None


class Batch:
    """Handles events of some partitions of a subscription, one transaction at a time.

    The first attempt uses no savepoints, because failures are rare. If an event fails, the
    transaction is rolled back and repeated with a savepoint around each event, so that only the
    failing event is undone.
    """

    def __init__(
        self,
        session: RunnerSession,
        subscription: Subscription,
        handling: Handling,
        stopping: Callable[[], bool],
    ) -> None:
        self._session = session
        self._subscription = subscription
        self._handling = handling
        self._stopping = stopping
        self._scope = {"tenant": subscription.owner, "name": subscription.name}
        self._failures: dict[int, Failure] = {}
        self._emptied_at = 0.0
        self._holding = False

    async def run(self, mine: Sequence[int]) -> Look:
        """Handles the next events.

        Args:
            mine: Partitions whose locks this session holds.

        Raises:
            UndeclaredError: An event's type or version is unknown, and the policy is to halt.
            CheckpointBeyondHeadError: The subscription is ahead of the log.
            SubscriptionError: The subscription was removed, or its handler is broken.
        """
        self._failures = {}
        look = await self._once(mine, careful=False)
        if look is None:
            look = await self._once(mine, careful=True)
        if look is None:
            raise SubscriptionError(
                f"subscription {self._subscription.name} did not isolate a failure"
            )
        self._failures = {}
        return look

    async def _once(self, mine: Sequence[int], *, careful: bool) -> Look | None:
        """One transaction; None if it was rolled back because an event failed."""
        look: Look | None = None
        outcome: _Outcome | None = None
        async with self._session.transaction():
            rows = await self._lock(mine)
            look, parked, given_up, paused = await self._look(rows, mine)
            if paused:
                raise psycopg.Rollback
            if self._holds(len(parked), given_up):
                raise psycopg.Rollback
            group, through = _next_part(rows, look.mark)
            after = group[0].global_position
            if after >= through:
                raise psycopg.Rollback
            outcome = _Outcome(after, parked, given_up)
            if not await self._deliver(group, through, outcome, careful=careful):
                look = None
                raise psycopg.Rollback
            reached = outcome.reached
            look = look._replace(behind=reached < look.mark and not outcome.full)
            if outcome.halt is not None and reached == after:
                raise outcome.halt
            if not await self._store(group, outcome, after, hurry=through < look.mark):
                look = look._replace(behind=False, due_in_s=_EMPTY_EVERY_S)
                raise psycopg.Rollback
            if not careful and not await self._act(outcome):
                look = None
                raise psycopg.Rollback
        if look is not None and outcome is not None:
            self._handling.committed()
            await self._report(outcome)
            if outcome.halt is not None:
                raise outcome.halt
        return look

    async def _lock(self, mine: Sequence[int]) -> list[_Partition]:
        subscription = self._subscription
        found = await self._session.rows(
            statement.LOCK, (subscription.owner, subscription.name, list(mine))
        )
        rows = [_Partition(*row) for row in found]
        if len(rows) < len(mine):
            raise SubscriptionError(f"subscription {subscription.name} was removed while it ran")
        return rows

    async def _look(
        self, rows: list[_Partition], mine: Sequence[int]
    ) -> tuple[Look, set[str], int, bool]:
        asked = {**self._scope, "partitions": rows[0].partitions, "mine": list(mine)}
        row: Any = await self._session.row(statement.LOOK, asked)
        mark, head, parked, given_up, due_in_s, paused = row
        known = max(max(r.global_position, r.replay_until, r.resume_at or 0) for r in rows)
        if known > head:
            raise CheckpointBeyondHeadError(
                f"subscription {self._subscription.name} is ahead of the log",
                detail=f"it is at global position {known}, the log ends at {head}",
                hint="the log was restored to an earlier time: restore what the subscription has"
                " written to the same time, or remove the subscription and create it again",
            )
        look = Look(head, mark, due_in_s=None if paused else due_in_s)
        return look, set(parked), given_up, paused

    def _holds(self, parked: int, given_up: int) -> bool:
        """Whether delivery pauses: too many streams are parked, and some are still retried.

        The likely cause is an unavailable dependency, so further events would fail as well.
        """
        bound = self._subscription.parked_streams_max
        holding = given_up < bound <= parked
        if holding and not self._holding:
            _log.error(
                "too many streams wait, delivery pauses until one of them succeeds",
                subscription=self._subscription.name,
                parked_streams=parked,
            )
        self._holding = holding
        return holding

    async def _deliver(
        self, group: list[_Partition], through: int, outcome: _Outcome, *, careful: bool
    ) -> bool:
        """Handles a page of events; False if one failed and the transaction must roll back."""
        page = await self._read(group, through)
        deadline = time.monotonic() + self._subscription.batch_s_max
        silent = {row.partition: row.replay_until for row in group}
        for partition, event in page.events:
            if outcome.handled and self._enough(outcome, deadline):
                outcome.stopped = True
                return True
            live = event.global_position > silent[partition]
            try:
                if not await self._handle(event, live, outcome, careful=careful):
                    return False
            except UndeclaredError as error:
                outcome.halt = error
                outcome.stopped = True
                return True
            if outcome.full:
                outcome.stopped = True
                return True
            outcome.handled += 1
            outcome.reached = event.global_position
        outcome.reached = page.end
        return True

    def _enough(self, outcome: _Outcome, deadline: float) -> bool:
        return (
            outcome.handled >= self._subscription.batch_size
            or self._handling.limit.full(outcome.acted)
            or self._stopping()
            or time.monotonic() > deadline
        )

    async def _handle(
        self, event: StoredEvent, live: bool, outcome: _Outcome, *, careful: bool
    ) -> bool:
        """Handles or parks an event; False if it failed and the transaction must roll back."""
        if event.stream in outcome.parked:
            outcome.parking.append((event, live, None, None))
            return True
        known = self._failures.get(event.global_position)
        if known is not None and (
            self._handling.limit.once or known.wait_s(self._subscription.retry) is None
        ):
            outcome.acted += 1
            self._park(event, live, known, outcome)
            return True
        attempt = known.attempts + 1 if known else 1
        if careful:
            failure, acted = await self._handle_apart(event, live, attempt)
            outcome.acted += acted
        else:
            answer = await self._handling.call(event, live=live, attempt=attempt)
            failure = answer if isinstance(answer, Failure) else None
            if not isinstance(answer, Failure) and answer:
                outcome.effects.append((event, answer))
                outcome.acted += 1
        if failure is None:
            return True
        self._failures[event.global_position] = failure
        if careful:
            self._park(event, live, failure, outcome)
        return careful

    async def _handle_apart(
        self, event: StoredEvent, live: bool, attempt: int
    ) -> tuple[Failure | None, bool]:
        """Handles an event in a savepoint; returns its failure, and whether it has effects."""
        failure: Failure | None = None
        acted = False
        async with self._session.transaction():
            answer = await self._handling.call(event, live=live, attempt=attempt)
            if isinstance(answer, Failure):
                failure = answer
            else:
                acted = bool(answer)
                failure = await self._handling.act(answer, attempt)
            if failure is not None:
                raise psycopg.Rollback
        return failure, acted

    def _park(self, event: StoredEvent, live: bool, failure: Failure, outcome: _Outcome) -> None:
        subscription = self._subscription
        if outcome.given_up >= subscription.parked_streams_max:
            raise SubscriptionError(
                f"subscription {subscription.name} has parked too many streams",
                detail=f"{len(outcome.parked):,} streams; the last error was "
                f"{failure.error_code or failure.error_type} at {failure.error_location}",
                hint="that is no poison event: repair the handler, then"
                f" headwater events parked retry {subscription.name} --all",
            ) from failure.error
        if len(outcome.parked) >= subscription.parked_streams_max:
            outcome.full = True
            return
        wait_s = failure.wait_s(subscription.retry)
        outcome.parked.add(event.stream)
        outcome.given_up += wait_s is None
        outcome.parking.append((event, live, failure, wait_s))

    async def _report(self, outcome: _Outcome) -> None:
        for event, _, failure, wait_s in outcome.parking:
            if failure is not None:
                await report(
                    self._session,
                    self._subscription,
                    failure,
                    wait_s,
                    first=True,
                    stream=event.stream,
                    global_position=event.global_position,
                )

    async def _act(self, outcome: _Outcome) -> bool:
        """Performs the effects; False if one failed."""
        for event, effects in outcome.effects:
            known = self._failures.get(event.global_position)
            failure = await self._handling.act(effects, known.attempts + 1 if known else 1)
            if failure is not None:
                self._failures[event.global_position] = failure
                return False
        return True

    async def _store(
        self, group: list[_Partition], outcome: _Outcome, before: int, *, hurry: bool
    ) -> bool:
        """Writes parked events and the checkpoint; False if the batch is not worth a commit."""
        if not outcome.handled and not hurry:
            now = time.monotonic()
            if now - self._emptied_at < _EMPTY_EVERY_S:
                return False
            self._emptied_at = now
        if not outcome.handled:
            await self._session.change(statement.NO_FSYNC)
        if outcome.parking:
            await self._session.change(statement.PARK, self._parked_columns(outcome))
        partitions = [row.partition for row in group]
        earlier = group[0].earlier
        settled = earlier is None or outcome.reached >= max(map(max, earlier))
        moved = await self._session.change(
            statement.ADVANCE,
            {
                **self._scope,
                "reached": outcome.reached,
                "before": before,
                "settled": settled,
                "partitions": partitions,
            },
        )
        if moved != len(partitions):
            raise SubscriptionError(
                f"another member has moved the checkpoint of {self._subscription.name}",
                detail=f"partitions {partitions}",
            )
        return True

    def _parked_columns(self, outcome: _Outcome) -> tuple[Any, ...]:
        columns: list[tuple[Any, ...]] = []
        for event, live, failure, wait_s in outcome.parking:
            state = "waiting" if failure is None else "parked" if wait_s is None else "retrying"
            columns.append(
                (
                    event.stream,
                    event.global_position,
                    state,
                    live,
                    failure.attempts if failure else 0,
                    failure.error_code if failure else None,
                    failure.error_type if failure else None,
                    failure.error_location if failure else None,
                    wait_s,
                )
            )
        by_column = [list(column) for column in zip(*columns, strict=True)]
        return (self._subscription.owner, self._subscription.name, *by_column)

    async def _read(self, group: list[_Partition], through: int) -> _Page:
        subscription = self._subscription
        partitions = group[0].partitions
        limit = min(_PAGE_MAX, subscription.batch_size * partitions // len(group))
        asked = statement.read(
            statement.Range(
                subscription.owner,
                subscription.query,
                group[0].global_position,
                through,
                limit,
                partitions,
                [row.partition for row in group],
                group[0].earlier,
            )
        )
        rows = await self._session.events(asked.sql, asked.parameters)
        last, size = rows[0][:2]
        events = [(row[2], StoredEvent._make(row[3:])) for row in rows if row[2] is not None]
        return _Page(events, last if size >= limit else through)


class _Page(NamedTuple):
    """Events of this member.

    Attributes:
        events: Partition and event, oldest first.
        end: Global position up to which the page has read the log.
    """

    events: list[tuple[int, StoredEvent]]
    end: int


def _next_part(rows: list[_Partition], mark: int) -> tuple[list[_Partition], int]:
    """Returns the partitions with the lowest checkpoint, and the end of their next read.

    The read ends at the next higher checkpoint, from which both groups are read together.
    """
    least = min(row.global_position for row in rows)
    group = [row for row in rows if row.global_position == least]
    ends = [row.global_position for row in rows if row.global_position > least]
    ends += [row.replay_through for row in group if row.replay_through is not None]
    return group, min([*ends, mark])
