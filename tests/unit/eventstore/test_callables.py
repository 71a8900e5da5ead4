"""What would never run is refused where it is declared: async functions, classes, other logs."""

from __future__ import annotations

import functools
import warnings

import pytest

from eventstore import AsyncEventStore, EventStore, EventTypes, WrongKindError, aggregate
from eventstore.deciding.aggregate import evolves, handles
from eventstore.memory import AsyncMemoryEventLog, MemoryEventLog
from eventstore.model.callables import check_function, check_instance, check_result, is_async
from eventstore.privacy.keyring import MemoryKeyRing
from tests.fix_account import Account, Deposit, Deposited, account, decide, evolve


async def coroutine(*_):
    return None


async def generator(*_):
    yield None


def plain(*_):
    return None


class Called:
    def __call__(self, *_):
        return None

    async def method(self, *_):
        return None

    @staticmethod
    async def static(*_):
        return None


class CalledAsync:
    async def __call__(self, *_):
        return None


@functools.wraps(coroutine)
def runs_it(*_):
    return None


NEVER_RUN = [
    coroutine,
    generator,
    functools.partial(coroutine, 1),
    functools.partial(functools.partial(generator, 1), 2),
    Called().method,
    Called.static,
    CalledAsync(),
    functools.partial(CalledAsync(), 1),
]
RUN = [plain, lambda *_: None, Called(), Called, CalledAsync, functools.partial(plain, 1), runs_it]


def names(functions):
    return [f"{n}-{getattr(f, '__qualname__', type(f).__name__)}" for n, f in enumerate(functions)]


@pytest.mark.parametrize("function", NEVER_RUN, ids=names(NEVER_RUN))
def test_what_runs_only_when_awaited_is_found(function):
    assert is_async(function)
    with pytest.raises(WrongKindError) as refused:
        check_function("the handler", function)
    assert ("HW-E023", True) == (refused.value.code, bool(refused.value.hint))


@pytest.mark.parametrize("function", RUN, ids=names(RUN))
def test_what_runs_when_it_is_called_is_taken(function):
    check_function("the handler", function)


@pytest.mark.parametrize("given", [None, 1, "handler", object()])
def test_what_cannot_be_called_is_refused(given):
    with pytest.raises(WrongKindError):
        check_function("the handler", given)


def test_a_result_that_waits_to_be_awaited_is_refused_without_a_further_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for result in (coroutine(), generator()):
            with pytest.raises(WrongKindError):
                check_result("the handler", result)
    check_result("the handler", [Deposited("a", 1)])


def test_a_class_is_refused_where_an_object_belongs():
    with pytest.raises(WrongKindError, match="instance"):
        check_instance("the view", Called)
    with pytest.raises(WrongKindError, match="apply"):
        check_instance("the view", Called(), ("apply",))
    check_instance("the view", Called(), ("method",))


@pytest.mark.parametrize("what", ["decide", "evolve", "initial_state", "stream_id"])
@pytest.mark.parametrize("function", NEVER_RUN, ids=names(NEVER_RUN))
def test_a_decider_is_made_of_functions_that_run(what, function):
    with pytest.raises(WrongKindError, match=what):
        account(**{what: function})


def test_an_initial_state_that_returns_a_coroutine_is_refused(make_account_store):
    with pytest.raises(WrongKindError, match="initial_state"):
        make_account_store(deciders=[account(initial_state=lambda: coroutine())])  # noqa: PLW0108


@pytest.mark.parametrize("what", ["decide", "evolve"])
def test_a_function_that_returns_a_coroutine_stores_nothing(make_account_store, what):
    usual = {"decide": decide, "evolve": evolve, "initial_state": Account}
    store = make_account_store(deciders=[account(**usual | {what: lambda *_: coroutine()})])
    store.append("account-a", Deposited("a", 1))
    with pytest.raises(WrongKindError):
        store.handle(Deposit("a", 1))

    assert 1 == len(list(store.read_stream("account-a")))


@pytest.mark.parametrize("mark", [handles, evolves, handles(Deposit), evolves(Deposited)])
@pytest.mark.parametrize("function", [coroutine, generator])
def test_a_method_of_an_aggregate_is_not_async(mark, function):
    with pytest.raises(WrongKindError):
        mark(function)


def test_the_id_of_an_aggregate_is_not_awaited():
    with pytest.raises(WrongKindError):

        @aggregate("seat", identity=coroutine)
        class Seat:
            pass


def test_tags_and_upcasters_are_not_async():
    types = EventTypes()
    with pytest.raises(WrongKindError):
        types.event("a.b", tags=coroutine)
    with pytest.raises(WrongKindError):
        types.upcaster("a.b", 1)(coroutine)


@pytest.mark.parametrize(
    ("store", "log"),
    [
        (EventStore, AsyncMemoryEventLog()),
        (EventStore, MemoryEventLog),
        (EventStore, AsyncMemoryEventLog),
        (EventStore, "postgresql://"),
        (AsyncEventStore, MemoryEventLog()),
        (AsyncEventStore, AsyncMemoryEventLog),
        (AsyncEventStore, None),
    ],
)
def test_a_store_takes_a_log_of_its_own_kind(store, log):
    with pytest.raises(WrongKindError):
        store(log)


@pytest.mark.parametrize(
    "options",
    [{"types": EventTypes}, {"types": None}, {"keyring": MemoryKeyRing}, {"keyring": "key"}],
    ids=str,
)
@pytest.mark.parametrize(
    ("store", "log"),
    [(EventStore, MemoryEventLog()), (AsyncEventStore, AsyncMemoryEventLog())],
    ids=["blocking", "asyncio"],
)
def test_a_store_takes_a_registry_and_a_key_ring_as_objects(store, log, options):
    with pytest.raises(WrongKindError):
        store(log, **options)
