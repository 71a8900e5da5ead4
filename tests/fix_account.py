"""A small domain for tests of the event store: accounts, with a person in one event."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from eventstore import (
    AsyncEventStore,
    Decider,
    EventStore,
    EventTypes,
    Personal,
    Redacted,
    Rejected,
)
from eventstore.memory import AsyncMemoryEventLog, MemoryEventLog
from eventstore.model.event import AppendRequest, StreamAppend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

types = EventTypes()


@types.event("account.opened", subject="account_id")
class Opened:
    account_id: str
    owner: Personal[str]


@types.event("account.deposited", public=True)
class Deposited:
    account_id: str
    amount: int


@types.event("account.withdrawn", tags=lambda withdrawn: [f"account:{withdrawn.account_id}"])
class Withdrawn:
    account_id: str
    amount: int


@dataclass(frozen=True)
class Open:
    account_id: str
    owner: Personal[str]


@dataclass(frozen=True)
class Deposit:
    account_id: str
    amount: int
    times: int = 1


@dataclass(frozen=True)
class Withdraw:
    account_id: str
    amount: int


@dataclass(frozen=True)
class Empty:
    """Withdraws what is there; nothing if nothing is."""

    account_id: str


class Overdrawn(Rejected):
    """There is less on the account."""


@dataclass(frozen=True)
class Account:
    balance: int = 0
    bookings: tuple[int, ...] = ()
    owner: str | Redacted | None = None


def decide(command: Any, state: Account) -> Iterable[Any]:
    match command:
        case Open(account_id, owner):
            yield Opened(account_id, owner)
        case Deposit(account_id, amount, times):
            yield from [Deposited(account_id, amount)] * times
        case Withdraw(account_id, amount):
            if amount > state.balance:
                raise Overdrawn(f"there is less than {amount}")
            yield Withdrawn(account_id, amount)
        case Empty(account_id):
            if state.balance:
                yield Withdrawn(account_id, state.balance)


def evolve(state: Account, event: Any) -> Account:
    match event:
        case Opened(_, owner):
            return replace(state, owner=owner)
        case Deposited(_, amount):
            return replace(
                state, balance=state.balance + amount, bookings=(*state.bookings, amount)
            )
        case Withdrawn(_, amount):
            return replace(
                state, balance=state.balance - amount, bookings=(*state.bookings, -amount)
            )
    raise AssertionError(event)


def account(**fields: Any) -> Decider[Any, Any, Account]:
    """The decider of accounts, with other fields than usual."""
    usual: dict[str, Any] = {
        "category": "account",
        "decide": decide,
        "evolve": evolve,
        "initial_state": Account,
        "commands": (Open, Deposit, Withdraw, Empty),
        "stream_id": lambda command: command.account_id,
    }
    return Decider(**{**usual, **fields})


class HookedLog(MemoryEventLog):
    """A log in memory at which other things happen just before, or after, a method is called.

    Each hook runs once, unless it puts itself back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], object]] = {}
        self.after: dict[str, Callable[[], object]] = {}
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in HOOKED:
            return found

        def called(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            self.before.pop(name, lambda: None)()
            answer = found(*args, **options)
            self.after.pop(name, lambda: None)()
            return answer

        return called


HOOKED = {
    "append",
    "read_boundary",
    "read_stream",
    "result_of",
    "snapshot",
    "save_snapshot",
    "stream_version",
}


class BlockingStore:
    """An `AsyncEventStore` whose methods wait, so that the same tests run over both stores."""

    def __init__(self, log: Any, *, runner: asyncio.Runner | None = None, **options: Any) -> None:
        self._store = AsyncEventStore(log, **options)
        self._runner = runner or asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def called(*args: Any, **options: Any) -> Any:
            answer = found(*args, **options)
            if hasattr(answer, "__aiter__"):
                return iter(self._runner.run(listed(answer)))
            return self._runner.run(answer) if asyncio.iscoroutine(answer) else answer

        return called

    def for_tenant(self, tenant: str) -> BlockingStore:
        made = BlockingStore(self._store.log, runner=self._runner)
        made._store = self._store.for_tenant(tenant)
        return made

    def end(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()


async def listed(events: Any) -> list[Any]:
    return [event async for event in events]


@pytest.fixture
def account_log() -> HookedLog:
    """An empty log at which other things can happen."""
    return HookedLog()


@pytest.fixture(params=["blocking", "asyncio"])
def make_account_store(
    request: pytest.FixtureRequest, account_log: HookedLog
) -> Iterator[Callable[..., Any]]:
    """Makes a store over that log: once as it is, once the one for asyncio."""
    ends = []

    def make(**options: Any) -> Any:
        options = {"types": types, "deciders": [account()], **options}
        if request.param == "blocking":
            return EventStore(account_log, **options)
        store = BlockingStore(AsyncMemoryEventLog(account_log), **options)
        ends.append(store.end)
        return store

    yield make
    for end in ends:
        end()


def events_of(store: Any, stream: str = "account-a") -> list[Any]:
    return [found.event for found in store.read_stream(stream)]


def again(hooks: dict[str, Any], name: str, hook: Callable[[], object]) -> None:
    """Puts a hook that stays."""

    def run() -> None:
        hook()
        hooks[name] = run

    hooks[name] = run


def append_of(store: Any, stream: str, *events: object) -> AppendRequest:
    encode = store.codec.encode
    encoded = tuple(encode(e, tenant=store.tenant, stream=stream) for e in events)
    return AppendRequest((StreamAppend(stream, encoded),), store.tenant)


def always_faster(log: HookedLog, store: Any) -> None:
    """Lets another writer append to the account just before each append."""
    again(
        log.before,
        "append",
        lambda: MemoryEventLog.append(log, append_of(store, "account-a", Deposited("a", 1))),
    )
