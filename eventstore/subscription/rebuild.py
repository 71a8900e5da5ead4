"""Rebuild: computes a view's own tables again from the log, and replaces differing rows atomically.

In the session of the rebuild, temporary tables of the same names hide the view's own tables, so the
handler writes to them. When they have caught up, a transaction locks the subscription's
checkpoints, which makes its runners wait between two batches; handles the remaining events; and
replaces the rows that differ. Readers see either all old rows or all new rows. The tables, their
indexes, grants and dependent views remain, and the checkpoints do not move.
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
"""Events per transaction, also of the last one, during which runners wait."""

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
    """The result of a rebuild.

    Attributes:
        events: Number of events that the handler has handled.
        removed: Number of deleted rows: absent from the rebuilt tables, or different there.
        added: Number of inserted rows.
    """

    events: int
    removed: int
    added: int


class _Checkpoints(NamedTuple):
    """Checkpoints of a subscription, by partition."""

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

    The rebuild has no effects outside the database: `delivery.live` is false, and effects are
    dropped. If the handler writes to a table that the subscription does not name, the rebuild fails
    and the view's tables are unchanged.

    Args:
        dsn: The event store's database, not through a pooler in transaction mode; never shown.
        subscription: Names its own tables, each with a primary key. The handler must name them
            without a schema.
        store: Decodes events, and determines their tenant.
        codec: Decodes events if there is no store.
        after: Only events after this global position; by default, where the subscription began.

    Raises:
        SubscriptionError: The subscription has no tables, or they cannot be rebuilt; it has never
            run, has parked streams or is replaying; or the handler wrote to other tables.
        Exception: Raised by the handler.
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
    """`rebuild` for a view whose handler is async."""
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
        """Performs the rebuild."""
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
        """Handles events that all partitions have passed, until at most a page of them is left."""
        while True:
            reached = await self._checkpoints(session, _CHECKPOINTS)
            through = min(reached.positions.values())
            if through - self._after <= PAGE:
                return
            async with session.transaction():
                await self._page(session, shadow, reached, through)

    async def _exchange(self, session: RunnerSession, shadow: Shadow) -> Rebuilt:
        """Handles the remaining events while runners wait, and replaces the rows that differ."""
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
                    continue  # no event, or an event after the checkpoint of its partition
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
                f"subscription {name} is replaying, or has not finished its repartitioning",
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
            f"subscription {subscription.name} began at the end of the log, which is not recorded",
            hint="give the global position after which to rebuild it: after=...",
        )
    return 0
