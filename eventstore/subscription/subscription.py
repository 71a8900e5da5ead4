"""Subscription: which events a handler receives, and how its failures are handled."""

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
    check_kind,
)
from eventstore.model.names import DEFAULT_TENANT, check_tenant
from eventstore.model.query import EVERYTHING, POSITION_MAX, Query
from eventstore.model.unknown import UnknownPolicy
from eventstore.subscription.retry import RetryPolicy
from foundation.retry import at_least_zero

if TYPE_CHECKING:
    from eventstore.subscription.delivery import Delivery
    from eventstore.subscription.failure import HandlerFailure

PARTITIONS_MAX: Final = 256
"""Each partition costs a row, a lock and a part of each read."""

BATCH_SIZE: Final = 200
"""Events per transaction: enough to spread the cost of a commit, few enough to repeat."""

BATCH_S_MAX: Final = 1.0
"""Seconds after which a batch commits early, so that slow handlers do not hold locks for long."""

PARKED_STREAMS_MAX: Final = 1_000
"""More parked streams point to a broken handler or an unavailable dependency."""

Handler: TypeAlias = Callable[[Any, "Delivery"], object]
"""Takes an event and its delivery. Its result is ignored; an error is a failure of the event."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


class Start(StrEnum):
    """Where the first run of a subscription begins.

    Attributes:
        BEGINNING: At the first event of the log.
        END: After the last event that the log has at that moment.
    """

    BEGINNING = "beginning"
    END = "end"


class Projection(Protocol):
    """A view in the event store's own database.

    The writes of `apply` and the checkpoint commit in one transaction, so each event takes effect
    exactly once, also after a crash. Events of a stream are applied in stream order.

    The optional attribute `tables` names the view's own tables; see `Subscription`.

    Attributes:
        name: Name of the view's subscription.
        query: Events that the view is computed from.
    """

    name: str
    query: Query

    def apply(self, event: Any, connection: Any, /) -> object:
        """Applies an event to the view; the parameters may have any names.

        Args:
            event: A `RecordedEvent`.
            connection: The psycopg connection with an open transaction. Do not commit it here.
        """
        ...


class AsyncProjection(Protocol):
    """A `Projection` whose `apply` is async; its connection is a `psycopg.AsyncConnection`.

    Attributes:
        name: Name of the view's subscription.
        query: Events that the view is computed from.
    """

    name: str
    query: Query

    async def apply(self, event: Any, connection: Any, /) -> object:
        """See `Projection.apply`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A named reader of the log with a durable checkpoint.

    Attributes:
        name: Its identity within the tenant.
        handler: Called for each event, in stream order.
        query: Events that the subscription reads.
        tenant: Tenant of the events; None: the tenant of the runner's store, or the default tenant.
        partitions: Number of partitions of the streams, and so of processes that share the work.
        start: Where the first run begins; a number is the global position after which it begins.
        effects_from: `END` suppresses effects for events that exist at the first run.
        batch_size: Maximum events per transaction.
        batch_s_max: Seconds after which a transaction commits early.
        retry: How failed events are retried.
        unknown: Policy for events whose type the program does not declare.
        parked_streams_max: Maximum parked streams. At the maximum, the subscription pauses while
            some of them are still retried, and stops if none is.
        on_failure: Called with each failure of the handler, after its transaction.
        tables: Tables that only this subscription writes, named without a schema. `rebuild`
            computes them again; a replay is refused, because it would apply events twice.
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
        self._check_kinds()
        number = type(self.start) is int and 0 <= self.start <= POSITION_MAX
        if not isinstance(self.start, Start) and not number:
            raise SubscriptionError(
                f"subscription {self.name} starts at BEGINNING, END or after a global position",
                detail=f"{self.start!r:.80}",
            )
        if type(self.batch_size) is not int or not 1 <= self.batch_size <= _BATCH_SIZE_MAX:
            raise SubscriptionError(
                f"a batch of subscription {self.name} has 1 to {_BATCH_SIZE_MAX:,} events",
                detail=f"{self.batch_size!r:.80}",
            )

    def _check_kinds(self) -> None:
        # a text such as "end" is not Start.END: effects of the whole history would be performed
        for name, kind, hint in _KINDS:
            check_kind(f"{name} of subscription {self.name}", getattr(self, name), kind, hint)
        parked = self.parked_streams_max
        if type(parked) is not int or not at_least_zero(parked):
            raise SubscriptionError(
                f"subscription {self.name} parks 0 streams or more", detail=f"{parked!r:.80}"
            )
        if not at_least_zero(self.batch_s_max):
            raise SubscriptionError(
                f"a batch of subscription {self.name} takes 0 seconds or more",
                detail=f"{self.batch_s_max!r:.80}",
            )

    def _check_functions(self) -> None:
        check_function(f"the handler of subscription {self.name}", self.handler)
        if self.on_failure is not None:
            check_function(f"on_failure of subscription {self.name}", self.on_failure)

    @property
    def owner(self) -> str:
        """The tenant whose events it reads if its runner has no store."""
        return self.tenant or DEFAULT_TENANT

    @classmethod
    def of(cls, projection: Projection, **options: Any) -> Subscription:
        """Returns the subscription that maintains a view.

        Args:
            projection: The view.
            options: Attributes of the subscription besides its name, handler and query.

        Raises:
            WrongKindError: The projection is a class, has no `apply`, or its `apply` is async.
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

    The delivery's connection is a `psycopg.AsyncConnection`. Effects and `on_failure` may be async.
    """

    def _check_functions(self) -> None:
        check_async_function(f"the handler of subscription {self.name}", self.handler)
        if self.on_failure is not None:
            check_callable(f"on_failure of subscription {self.name}", self.on_failure)

    @classmethod
    def of(  # type: ignore[override]  # a view of this kind only
        cls, projection: AsyncProjection, **options: Any
    ) -> AsyncSubscription:
        """Returns the subscription that maintains a view whose `apply` is async.

        Args:
            projection: The view.
            options: Attributes of the subscription besides its name, handler and query.

        Raises:
            WrongKindError: The projection is a class, has no `apply`, or its `apply` is not async.
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


_KINDS: Final = (
    ("query", Query, 'such as Query(category="order") or tagged("customer:c1")'),
    ("effects_from", Start, "Start.BEGINNING or Start.END"),
    ("retry", RetryPolicy, "such as RetryPolicy(attempts_max=5)"),
    ("unknown", UnknownPolicy, "UnknownPolicy.HALT or UnknownPolicy.PARK"),
)
_BATCH_SIZE_MAX: Final = 10_000
_TABLES_MAX: Final = 20


def _tables_of(projection: object) -> tuple[str, ...]:
    tables = getattr(projection, "tables", ())
    return tuple(tables) if isinstance(tables, list | set | frozenset) else tables


def check_tables(name: str, tables: tuple[str, ...]) -> None:
    """Checks the names of a subscription's own tables.

    Raises:
        SubscriptionError: They are not a tuple of names, are too many, or contain a duplicate.
    """
    names = type(tables) is tuple and all(
        type(table) is str and 0 < len(table.encode()) <= _NAME_BYTES for table in tables
    )
    if not names or len(set(tables)) < len(tables):
        raise SubscriptionError(
            f"the tables of subscription {name} must be a tuple of distinct names",
            detail=f"{tables!r:.80}",
            hint='such as ("balances",), without a schema',
        )
    if len(tables) > _TABLES_MAX:
        raise SubscriptionError(f"subscription {name} has {_TABLES_MAX} tables at most")


_NAME_BYTES: Final = 63


def check_subscription(name: str) -> str:
    """Returns the name of a subscription if it is valid.

    Raises:
        NameRefusedError: The name is invalid.
    """
    if type(name) is not str or not _NAME.fullmatch(name):
        raise NameRefusedError(
            "a subscription's name has only letters, digits, '_', '.' and '-'",
            detail=f"{name!r:.100}",
            hint="use 63 characters at most, a letter first",
        )
    return name


def check_partitions(partitions: int) -> int:
    """Returns the number of partitions if it is valid.

    Raises:
        SubscriptionError: The number is invalid.
    """
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        raise SubscriptionError(
            f"a subscription has 1 to {PARTITIONS_MAX} partitions", detail=f"{partitions!r:.80}"
        )
    return partitions
