"""Rebuild: a view's own tables computed again from the log, then exchanged in one transaction.

The handler writes to temporary tables of the same names, which hide the view's own in the session
of the rebuild. When they have caught up, the subscription's checkpoints are locked, so its runners
wait between two batches; what is left is handled; and the rows that differ are exchanged. Readers
see all of the old rows, then all of the new ones. Table, indexes, grants and views stay what they
are, and the checkpoints do not move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg

from eventstore.errors import SubscriptionError
from eventstore.model.event import StoredEvent
from eventstore.model.query import EVERYTHING
from eventstore.postgres.connection import check_address
from eventstore.postgres.errors import translated
from eventstore.subscription import membership, statement
from eventstore.subscription.delivery import Delivery
from eventstore.subscription.handling import decoder
from eventstore.subscription.refusal import refused
from eventstore.subscription.runner import tenant_of
from eventstore.subscription.session import async_session, blocking_session, completed
from eventstore.subscription.shadow import Shadow
from eventstore.subscription.subscription import AsyncSubscription, Start

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from eventstore.async_store import AsyncEventStore
    from eventstore.serialization.codec import Codec
    from eventstore.store import EventStore
    from eventstore.subscription.session import RunnerSession
    from eventstore.subscription.subscription import Subscription

PAGE: Final = 1_000
"""Events of one transaction; and of the last one, during which runners wait."""

_CHECKPOINTS: Final = (
    "SELECT partition, partitions, global_position,"
    " replay_through IS NOT NULL OR earlier IS NOT NULL"
    " FROM eventstore.subscriptions WHERE tenant = %s AND name = %s ORDER BY partition"
)
_LOCKED: Final = _CHECKPOINTS + " FOR NO KEY UPDATE"
_PARKED: Final = (
    "SELECT FROM eventstore.parked_events WHERE tenant = %s AND subscription = %s LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did.

    Attributes:
        events: How many the handler was called with.
        removed: Rows that the tables had and the log does not give, or gives differently.
        added: Rows that were put in.
    """

    events: int
    removed: int
    added: int


class _Checkpoints(NamedTuple):
    """How far a subscription is, by partition."""

    positions: dict[int, int]

    @property
    def partitions(self) -> int:
        return len(self.positions)


def rebuild(
    dsn: str,
    subscription: Subscription,
    *,
    store: EventStore | None = None,
    codec: Codec | None = None,
    after: int | None = None,
) -> Rebuilt:
    """Rebuilds a view's tables, whether or not its subscription runs.

    Nothing happens outside of the database: `delivery.live` is false, and effects are dropped. What
    the handler writes to tables that the subscription does not name is refused, and everything is
    as it was.

    Args:
        dsn: The event store's database, with a session of its own; never shown.
        subscription: Names the tables that it alone writes, each with a primary key. The handler
            names them without a schema.
        store: Decodes events, and says whose they are.
        codec: Decodes events where there is no store.
        after: Only events after this global position; what the subscription began with if left out.

    Raises:
        SubscriptionError: It has no tables, or they cannot be rebuilt; it has never run, has parked
            streams or replays; or the handler wrote elsewhere.
        Exception: What the handler raised.
    """
    if isinstance(subscription, AsyncSubscription):
        raise SubscriptionError(
            f"the handler of subscription {subscription.name} is async",
            hint="await async_rebuild(...)",
        )
    work = _Rebuilding(dsn, subscription, store, codec, after)
    return completed(work.run(partial(blocking_session, dsn)))


async def async_rebuild(
    dsn: str,
    subscription: AsyncSubscription,
    *,
    store: AsyncEventStore | None = None,
    codec: Codec | None = None,
    after: int | None = None,
) -> Rebuilt:
    """Is `rebuild` for a view whose handler is async."""
    work = _Rebuilding(dsn, subscription, store, codec, after)
    in_threads = work.codec is not None and work.codec.keyring is not None
    return await work.run(partial(async_session, dsn, in_threads=in_threads))


class _Rebuilding:
    """One rebuild, over one session."""

    def __init__(
        self,
        dsn: str,
        subscription: Subscription,
        store: EventStore | AsyncEventStore | None,
        codec: Codec | None,
        after: int | None,
    ) -> None:
        if not subscription.tables:
            raise SubscriptionError(
                f"subscription {subscription.name} names no table of its own",
                hint="tables = ('balances',) in the projection, or tables=... in the Subscription",
            )
        check_address(dsn)
        self.codec = store.codec if codec is None and store is not None else codec
        self._subscription = replace(subscription, tenant=tenant_of(subscription, store))
        self._decode = decoder(self.codec)
        self._after = _begin(subscription) if after is None else after
        self._events = 0

    async def run(
        self, opened: Callable[..., AbstractAsyncContextManager[RunnerSession]]
    ) -> Rebuilt:
        """Does it."""
        name = self._subscription.name
        try:
            async with opened(f"headwater rebuild {name}") as session:
                await membership.own_session(session, opened, name)
                await session.rows(statement.ACT_FOR, (self._subscription.owner,))
                shadow = Shadow(session, name, self._subscription.tables)
                await self._checkpoints(session, _CHECKPOINTS)
                await shadow.make()
                await self._catch_up(session, shadow)
                async with session.transaction():
                    return await self._exchange(session, shadow)
        except psycopg.Error as error:
            raise translated(error) from error

    async def _catch_up(self, session: RunnerSession, shadow: Shadow) -> None:
        """Handles what all partitions are past, until a page of it at most is left."""
        while True:
            reached = await self._checkpoints(session, _CHECKPOINTS)
            through = min(reached.positions.values())
            if through - self._after <= PAGE:
                return
            async with session.transaction():
                await self._page(session, shadow, reached, through)

    async def _exchange(self, session: RunnerSession, shadow: Shadow) -> Rebuilt:
        """Handles what is left while runners wait, and puts the rows in their place."""
        reached = await self._checkpoints(session, _LOCKED)
        through = max(reached.positions.values())
        while self._after < through:
            await self._page(session, shadow, reached, through)
        removed, added = await shadow.exchange()
        return Rebuilt(self._events, removed, added)

    async def _page(
        self, session: RunnerSession, shadow: Shadow, reached: _Checkpoints, through: int
    ) -> None:
        subscription = self._subscription
        wanted = list(reached.positions)
        asked = statement.read(
            statement.Range(
                subscription.owner,
                subscription.query or EVERYTHING,
                self._after,
                through,
                PAGE,
                reached.partitions,
                wanted,
                None,
            )
        )
        rows = await session.events(asked.sql, asked.parameters)
        last, size = rows[0][:2]
        async with shadow.guarded():
            for row in rows:
                if row[2] is None or row[3] > reached.positions[row[2]]:
                    continue  # of no event, or of one that its partition has not come to
                await self._handle(session, StoredEvent._make(row[3:]))
        self._after = last if size >= PAGE else through

    async def _handle(self, session: RunnerSession, stored: StoredEvent) -> None:
        subscription = self._subscription
        event = await session.compute(self._decode, stored)
        key = f"{subscription.name}:{stored.event_id}"
        delivery = Delivery(session.connection, subscription.name, stored.tenant, False, 1, key)
        delivery.awaited = isinstance(subscription, AsyncSubscription)
        what = f"the handler of subscription {subscription.name}"
        await session.call(what, subscription.handler, event, delivery)
        self._events += 1

    async def _checkpoints(self, session: RunnerSession, asked: str) -> _Checkpoints:
        name = self._subscription.name
        which = (self._subscription.owner, name)
        rows = await session.rows(asked, which)
        if not rows:
            raise refused("absent", name)
        if any(row[3] for row in rows):
            raise SubscriptionError(
                f"subscription {name} replays, or is not through its former partitions",
                hint="run it until it has caught up, then rebuild",
            )
        if await session.row(_PARKED, which) is not None:
            raise SubscriptionError(
                f"subscription {name} has parked streams, whose events its tables lack",
                hint=f"headwater events parked retry {name} --all, then rebuild",
            )
        return _Checkpoints({row[0]: row[2] for row in rows})


def _begin(subscription: Subscription) -> int:
    if isinstance(subscription.start, int):
        return subscription.start
    if subscription.start is Start.END:
        raise SubscriptionError(
            f"subscription {subscription.name} began at an end of the log that is not recorded",
            hint="say after which global position it is rebuilt: after=...",
        )
    return 0
