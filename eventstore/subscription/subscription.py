"""Subscription: what is delivered to whom, from where, and what happens when it fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from eventstore.errors import NameRefusedError, SubscriptionError
from eventstore.model.callables import (
    check_async_function,
    check_callable,
    check_function,
    check_instance,
)
from eventstore.model.names import DEFAULT_TENANT, check_tenant
from eventstore.model.query import EVERYTHING, Query
from eventstore.model.unknown import UnknownPolicy
from eventstore.subscription.retry import RetryPolicy

if TYPE_CHECKING:
    from eventstore.subscription.delivery import Delivery
    from eventstore.subscription.failure import HandlerFailure

PARTITIONS_MAX: Final = 256
"""Each is a row, a lock and a share of each read."""

BATCH_SIZE: Final = 200
"""Events of one transaction: enough to make its commit cheap, few enough to repeat."""

BATCH_S_MAX: Final = 1.0
"""Seconds after which a batch commits what it has, so that slow handlers hold no locks for long."""

PARKED_STREAMS_MAX: Final = 1_000
"""More than this is no poison event but a broken handler or a dependency that is away."""

Handler: TypeAlias = Callable[[Any, "Delivery"], object]
"""Takes an event and its delivery; what it returns is ignored, what it raises is a failure."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


class Start(StrEnum):
    """Where a subscription begins when it runs for the first time.

    Attributes:
        BEGINNING: At the first event of the log.
        END: After what the log has at that moment.
    """

    BEGINNING = "beginning"
    END = "end"


class Projection(Protocol):
    """A view that is kept in the event store's own database.

    What `apply` writes through the connection, and how far the view has come, commit together: each
    event takes effect once, whatever crashes. Within a stream, events come in their order.

    An attribute `tables`, if it has one, names the tables that it alone writes; see `Subscription`.

    Attributes:
        name: Names the view's subscription.
        query: Which events it is made of.
    """

    name: str
    query: Query

    def apply(self, event: Any, connection: Any, /) -> object:
        """Takes an event into the view; its parameters may have any names.

        Args:
            event: A `RecordedEvent`.
            connection: psycopg's, with the transaction open. It must not be committed here.
        """
        ...


class AsyncProjection(Protocol):
    """A `Projection` whose `apply` is async; its connection is psycopg's for asyncio.

    Attributes:
        name: Names the view's subscription.
        query: Which events it is made of.
    """

    name: str
    query: Query

    async def apply(self, event: Any, connection: Any, /) -> object:
        """See `Projection.apply`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A named reader of the log that remembers how far it has come.

    Attributes:
        name: Its identity within the tenant.
        handler: Is called for each event, in the order of its stream.
        query: Which events.
        tenant: Whose; None: its runner's store's, or the default tenant.
        partitions: Into how many parts the streams are split; so many processes can share the work.
        start: Where it begins when it runs for the first time; a number is the global position
            after which it begins.
        effects_from: `END`: on the first run, side effects are held back for the history that is
            there already.
        batch_size: Events of one transaction at most.
        batch_s_max: Seconds after which a transaction commits what it has.
        retry: What happens when the handler fails.
        unknown: What happens to events that the program has no class for.
        parked_streams_max: Streams that may wait. Where some of so many are still retried, the
            subscription pauses until one succeeds; where none is, it stops.
        on_failure: Is given each failure of the handler, with the error, after its transaction.
        tables: Tables that this subscription alone writes, named without a schema. `rebuild` builds
            them again; a replay, which would double what they hold, is refused.
    """

    name: str
    handler: Handler
    query: Query = EVERYTHING
    tenant: str | None = None
    partitions: int = 1
    start: Start | int = Start.BEGINNING
    effects_from: Start = Start.BEGINNING
    batch_size: int = BATCH_SIZE
    batch_s_max: float = BATCH_S_MAX
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    unknown: UnknownPolicy = UnknownPolicy.HALT
    parked_streams_max: int = PARKED_STREAMS_MAX
    on_failure: Callable[[HandlerFailure], object] | None = None
    tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_subscription(self.name)
        self._check_functions()
        if self.tenant is not None:
            check_tenant(self.tenant)
        check_partitions(self.partitions)
        check_tables(self.name, self.tables)
        if not isinstance(self.start, Start) and (type(self.start) is not int or self.start < 0):
            raise SubscriptionError(
                f"subscription {self.name} starts at BEGINNING, END or after a global position",
                detail=f"{self.start!r:.80}",
            )
        if type(self.batch_size) is not int or not 1 <= self.batch_size <= _BATCH_SIZE_MAX:
            raise SubscriptionError(
                f"a batch of subscription {self.name} has 1 to {_BATCH_SIZE_MAX:,} events",
                detail=f"{self.batch_size!r:.80}",
            )

    def _check_functions(self) -> None:
        check_function(f"the handler of subscription {self.name}", self.handler)
        if self.on_failure is not None:
            check_function(f"on_failure of subscription {self.name}", self.on_failure)

    @property
    def owner(self) -> str:
        """Whose events it reads where its runner has no store."""
        return self.tenant or DEFAULT_TENANT

    @classmethod
    def of(cls, projection: Projection, **options: Any) -> Subscription:
        """Returns the subscription that keeps a view.

        Args:
            projection: The view.
            options: Attributes of the subscription besides its name, handler and query.

        Raises:
            WrongKindError: It is a class, has no `apply`, or that is an async function.
        """
        check_instance("a projection", projection, ["apply"])
        check_function(f"apply of projection {projection.name}", projection.apply)

        def apply(event: Any, delivery: Delivery) -> object:
            return projection.apply(event, delivery.connection)

        return cls(
            name=projection.name,
            handler=apply,
            query=projection.query,
            **{"tables": _tables_of(projection), **options},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSubscription(Subscription):
    """A subscription whose handler is async; an `AsyncSubscriptionRunner` runs it.

    The delivery's connection is psycopg's for asyncio. Effects and `on_failure` may be async.
    """

    def _check_functions(self) -> None:
        check_async_function(f"the handler of subscription {self.name}", self.handler)
        if self.on_failure is not None:
            check_callable(f"on_failure of subscription {self.name}", self.on_failure)

    @classmethod
    def of(  # type: ignore[override]  # a view of this kind only
        cls, projection: AsyncProjection, **options: Any
    ) -> AsyncSubscription:
        """Returns the subscription that keeps a view whose `apply` is async.

        Args:
            projection: The view.
            options: Attributes of the subscription besides its name, handler and query.

        Raises:
            WrongKindError: It is a class, has no `apply`, or that is no async function.
        """
        check_instance("a projection", projection, ["apply"])
        check_async_function(f"apply of projection {projection.name}", projection.apply)

        async def apply(event: Any, delivery: Delivery) -> object:
            return await projection.apply(event, delivery.connection)

        return cls(
            name=projection.name,
            handler=apply,
            query=projection.query,
            **{"tables": _tables_of(projection), **options},
        )


_BATCH_SIZE_MAX: Final = 10_000
_TABLES_MAX: Final = 20


def _tables_of(projection: object) -> tuple[str, ...]:
    return tuple(getattr(projection, "tables", ()))


def check_tables(name: str, tables: tuple[str, ...]) -> None:
    """Checks the names of a subscription's own tables.

    Raises:
        SubscriptionError: They are no tuple of names, too many, or one is there twice.
    """
    names = all(type(table) is str and 0 < len(table.encode()) <= _NAME_BYTES for table in tables)
    if type(tables) is not tuple or not names or len(set(tables)) < len(tables):
        raise SubscriptionError(
            f"subscription {name} names its tables in a tuple, each once",
            detail=f"{tables!r:.80}",
            hint='such as ("balances",), without a schema',
        )
    if len(tables) > _TABLES_MAX:
        raise SubscriptionError(f"subscription {name} has {_TABLES_MAX} tables at most")


_NAME_BYTES: Final = 63


def check_subscription(name: str) -> str:
    """Returns a subscription's name if it is one.

    Raises:
        NameRefusedError: It is not.
    """
    if type(name) is not str or not _NAME.fullmatch(name):
        raise NameRefusedError(
            "a subscription is named by letters, digits, '_', '.' and '-'",
            detail=f"{name!r:.100}",
            hint="63 characters at most, a letter first",
        )
    return name


def check_partitions(partitions: int) -> int:
    """Returns a number of partitions if it can be one.

    Raises:
        SubscriptionError: It cannot.
    """
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        raise SubscriptionError(
            f"a subscription has 1 to {PARTITIONS_MAX} partitions", detail=f"{partitions!r:.80}"
        )
    return partitions
