"""How a projection is tested: given these events, then the view is this.

    with psycopg.connect(DSN) as connection:  # with the view's table, and rolled back by the test
        projection_scenario(Balances(), connection).given(
            "account-a1", MoneyDeposited(Decimal(5))
        ).then_rows("SELECT account, balance FROM balances", [("account-a1", Decimal(5))])

Events are encoded and decoded as a store would, and only those of the projection's query are
applied. A view without a database takes any object, or None, for its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

from eventstore.deciding.context import NO_CONTEXT, Context
from eventstore.deciding.scenario import fail, same
from eventstore.log import LogPart
from eventstore.memory import MemoryEventLog
from eventstore.model.callables import check_function, check_instance, check_result
from eventstore.model.names import DEFAULT_TENANT
from eventstore.serialization.registry import EventTypes, declared
from eventstore.store import EventStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from eventstore.privacy.keyring import KeyRing
    from eventstore.subscription import Projection


def projection_scenario(  # noqa: PLR0913  # each is one thing that a test can want
    projection: Projection,
    connection: Any = None,
    *,
    types: EventTypes = declared,
    tenant: str = DEFAULT_TENANT,
    keyring: KeyRing | None = None,
    clock: Callable[[], datetime] | None = None,
) -> GivenProjection:
    """Returns a scenario of a projection without events.

    Args:
        projection: The view.
        connection: What `apply` is given.
        types: Registry of the event types.
        tenant: Whose they are.
        keyring: Needed for events with personal fields.
        clock: Recording time of events, such as a `MovedClock`.

    Raises:
        WrongKindError: The object is not a projection, or its `apply` is async.
    """
    check_instance("a projection", projection, ["apply"])
    check_function(f"apply of projection {projection.name}", projection.apply)
    log = MemoryEventLog() if clock is None else MemoryEventLog(clock=clock)
    store = EventStore(log, types=types, tenant=tenant, keyring=keyring)
    return GivenProjection(projection, connection, store)


class GivenProjection:
    """A view that has seen these events."""

    def __init__(self, projection: Projection, connection: Any, store: EventStore) -> None:
        self._projection = projection
        self._connection = connection
        self._store = store
        self._position = 0

    def given(self, stream: str, *events: Any, context: Context = NO_CONTEXT) -> Self:
        """Applies further events, in the order of the log.

        Args:
            stream: Of the events.
            events: Of declared classes, `EventData`, or `Occurrence`s of these.
            context: Stored beside them.

        Raises:
            Exception: What `apply` raises.
        """
        self._store.append(stream, events, context=context)
        part = LogPart(after=self._position)
        for recorded in list(self._store.read(self._projection.query, part)):
            result = self._projection.apply(recorded, self._connection)
            check_result(f"apply of projection {self._projection.name}", result)
        self._position = self._store.log.high_water_mark()
        return self

    def then_rows(self, query: str, expected: Iterable[tuple[Any, ...]]) -> Self:
        """Asserts what a query of the view's tables finds, in its order."""
        __tracebackhide__ = True
        found = [tuple(row) for row in self._connection.execute(query).fetchall()]
        wanted = list(expected)
        if not same(wanted, found):
            fail("the view has other rows", wanted, found)
        return self

    def __bool__(self) -> NoReturn:
        raise AssertionError("a scenario cannot be used with assert: it asserts by itself")
