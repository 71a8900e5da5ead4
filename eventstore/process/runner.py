"""ProcessRunner: runs a process manager as a subscription that also fires timers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventstore.model.callables import check_function
from eventstore.process.clock import Clock
from eventstore.process.reacting import Reacting
from eventstore.subscription import Subscription
from eventstore.subscription.runner import SubscriptionRunner
from eventstore.subscription.session import BlockingSession, completed

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.process.manager import ProcessManager
    from eventstore.serialization.recorded import RecordedEvent
    from eventstore.store import EventStore
    from eventstore.subscription import Delivery


class ProcessRunner(SubscriptionRunner):
    """Runs a process manager until it is stopped.

    An event that is taken in, the commands that follow from it, timers and the checkpoint commit
    together: a crash repeats nothing and loses nothing. What a process has taken in it ignores when
    it is delivered again. Events of one process that lie in several partitions are taken in one
    after another.

    Args:
        dsn: The event store's database, the same as the store's; never shown.
        manager: What to run.
        store: Has the deciders of the commands; its log is a `PostgresEventLog`.
        on_stop: See `SubscriptionRunner`.
        options: Attributes of the `Subscription` besides name, handler, query, tenant and unknown.
            With `effects_from=Start.END`, events of the history are taken in, and nothing is done
            about them.
    """

    def __init__(
        self,
        dsn: str,
        manager: ProcessManager[Any],
        store: EventStore,
        *,
        on_stop: Callable[[BaseException | None], object] | None = None,
        **options: Any,
    ) -> None:
        reacting = Reacting(manager, store)
        check_function("handle of the store of a ProcessRunner", store.handle)

        def take(event: RecordedEvent, delivery: Delivery) -> None:
            session = BlockingSession(delivery.connection)
            completed(reacting.take_event(event, delivery, session))

        subscription = Subscription(handler=take, **reacting.subscription(options))
        clock = Clock(subscription, reacting)
        super().__init__(dsn, subscription, store=store, chore=clock, on_stop=on_stop)
