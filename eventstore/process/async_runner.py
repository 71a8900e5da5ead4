"""AsyncProcessRunner: `ProcessRunner` as a task of an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventstore.model.callables import check_async_function
from eventstore.process.clock import Clock
from eventstore.process.reacting import Reacting
from eventstore.subscription import AsyncSubscription
from eventstore.subscription.async_runner import AsyncSubscriptionRunner
from eventstore.subscription.session import AsyncSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.async_store import AsyncEventStore
    from eventstore.process.manager import ProcessManager
    from eventstore.serialization.recorded import RecordedEvent
    from eventstore.subscription import Delivery


class AsyncProcessRunner(AsyncSubscriptionRunner):
    """Runs a process manager in an event loop; see `ProcessRunner`.

    The functions of the manager remain pure and synchronous. The runner folds the inputs of a
    process in the event loop, or in a thread if the store has a key ring.

    Args:
        dsn: The database of the store; never shown.
        manager: What to run.
        store: Has the deciders of the commands; its log is an `AsyncPostgresEventLog`.
        on_stop: See `AsyncSubscriptionRunner`.
        options: See `ProcessRunner`.
    """

    def __init__(
        self,
        dsn: str,
        manager: ProcessManager[Any],
        store: AsyncEventStore,
        *,
        on_stop: Callable[[BaseException | None], object] | None = None,
        **options: Any,
    ) -> None:
        reacting = Reacting(manager, store)
        check_async_function("handle of the store of an AsyncProcessRunner", store.handle)
        in_threads = store.codec.keyring is not None

        async def take(event: RecordedEvent, delivery: Delivery) -> None:
            session = AsyncSession(delivery.connection, in_threads=in_threads)
            await reacting.take_event(event, delivery, session)

        subscription = AsyncSubscription(handler=take, **reacting.subscription(options))
        clock = Clock(subscription, reacting)
        super().__init__(dsn, subscription, store=store, chore=clock, on_stop=on_stop)
