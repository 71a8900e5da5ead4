"""ReactorRunner: runs a reactor as a subscription whose handler only requests effects."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from eventstore.deciding.context import Context
from eventstore.model.callables import check_function, check_instance
from eventstore.process.reaction import Dispatch
from eventstore.reactor.limit import EffectLimit
from eventstore.subscription import Subscription
from eventstore.subscription.runner import SubscriptionRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.async_store import AsyncEventStore
    from eventstore.reactor.effect import OutsideEffect
    from eventstore.reactor.reactor import Reactor
    from eventstore.serialization.recorded import RecordedEvent
    from eventstore.store import EventStore
    from eventstore.subscription import Delivery

EVENTS_MAX: Final = 200
"""Maximum events without effects in one transaction."""


class ReactorRunner(SubscriptionRunner):
    """Runs a reactor until it is stopped. Several runners share its partitions.

    Args:
        dsn: The database of the store; never shown.
        reactor: The reactor.
        store: Decodes events, determines their tenant and handles commands.
        on_stop: See `SubscriptionRunner`.
    """

    def __init__(
        self,
        dsn: str,
        reactor: Reactor,
        store: EventStore,
        *,
        on_stop: Callable[[BaseException | None], object] | None = None,
    ) -> None:
        check_instance("a reactor", reactor, ["effects"])
        check_function("handle of the store of a ReactorRunner", store.handle)

        def take(event: RecordedEvent, delivery: Delivery) -> None:
            ask(reactor, store, event, delivery)

        subscription = Subscription(name=reactor.name, handler=take, **options_of(reactor, store))
        limit = EffectLimit(reactor)
        super().__init__(dsn, subscription, store=store, on_stop=on_stop, limit=limit)


def options_of(reactor: Reactor, store: EventStore | AsyncEventStore) -> dict[str, Any]:
    """Returns the attributes of a reactor's subscription besides its name and handler."""
    return {
        "query": reactor.query,
        "tenant": store.tenant,
        "partitions": reactor.partitions,
        "start": reactor.start,
        "batch_size": EVENTS_MAX,
        "retry": reactor.retry,
        "unknown": store.unknown,
        "parked_streams_max": reactor.parked_streams_max,
        "on_failure": reactor.on_failure,
    }


def ask(
    reactor: Reactor,
    store: EventStore | AsyncEventStore,
    event: RecordedEvent,
    delivery: Delivery,
    *,
    perform: Callable[[OutsideEffect], Callable[[str], object]] = attrgetter("perform"),
) -> None:
    """Requests the effects of an event; the handler of the subscription.

    Args:
        reactor: Determines the effects.
        store: Handles commands, in the delivery's transaction.
        event: The event.
        delivery: Receives the effects.
        perform: Returns the function that performs an external effect.
    """
    if not delivery.live:
        return
    context = Context(
        correlation_id=event.correlation_id, causation_id=str(event.event_id), actor=reactor.name
    )

    def dispatch(command: Any, key: str) -> object:
        return store.handle(
            command, idempotency_key=key, context=context, connection=delivery.connection
        )

    for effect in reactor.effects(event):
        if isinstance(effect, Dispatch):
            delivery.effect(partial(dispatch, effect.command), within=True)
        else:
            delivery.effect(perform(effect))
