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

    The event, the commands that follow from it, timers and the checkpoint commit in one
    transaction, so a crash neither repeats nor loses anything. A process ignores an event that is
    delivered again. Events of one process from several partitions are handled one at a time.

    Args:
        dsn: The database of the store; never shown.
        manager: What to run.
        store: Has the deciders of the commands; its log is a `PostgresEventLog`.
        on_stop: See `SubscriptionRunner`.
        options: Attributes of the `Subscription` besides name, handler, query, tenant and unknown.
            With `effects_from=Start.END`, processes record the existing events without reactions.
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
