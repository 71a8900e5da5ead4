"""AsyncReactorRunner: `ReactorRunner` as a task of an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eventstore.model.callables import check_async_function, check_instance
from eventstore.reactor.http_post import HttpPost
from eventstore.reactor.limit import EffectLimit
from eventstore.reactor.runner import ask, options_of
from eventstore.subscription import AsyncSubscription
from eventstore.subscription.async_runner import AsyncSubscriptionRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.async_store import AsyncEventStore
    from eventstore.reactor.effect import OutsideEffect
    from eventstore.reactor.reactor import Reactor
    from eventstore.serialization.recorded import RecordedEvent
    from eventstore.subscription import Delivery


class AsyncReactorRunner(AsyncSubscriptionRunner):
    """Runs a reactor in an event loop; see `ReactorRunner`.

    `react` remains a synchronous function, because it does no I/O. The function of an `Invoke` and
    `perform` of a custom effect may be async; an `HttpPost` is sent in a thread.

    Args:
        dsn: The database of the store; never shown.
        reactor: The reactor.
        store: Decodes events, determines their tenant and handles commands.
        on_stop: See `AsyncSubscriptionRunner`.
    """

    def __init__(
        self,
        dsn: str,
        reactor: Reactor,
        store: AsyncEventStore,
        *,
        on_stop: Callable[[BaseException | None], object] | None = None,
    ) -> None:
        check_instance("a reactor", reactor, ["effects"])
        check_async_function("handle of the store of an AsyncReactorRunner", store.handle)

        async def take(event: RecordedEvent, delivery: Delivery) -> None:
            ask(reactor, store, event, delivery, perform=_perform)

        subscription = AsyncSubscription(
            name=reactor.name, handler=take, **options_of(reactor, store)
        )
        limit = EffectLimit(reactor)
        super().__init__(dsn, subscription, store=store, on_stop=on_stop, limit=limit)


def _perform(effect: OutsideEffect) -> Callable[[str], object]:
    if not isinstance(effect, HttpPost):
        return effect.perform

    def in_a_thread(key: str) -> object:
        return asyncio.to_thread(effect.perform, key)

    return in_a_thread
