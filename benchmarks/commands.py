"""Commands for asyncio: many at once, to few streams, beside the same ones one after the other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.result import faster
from eventstore import AsyncEventStore, Decider, EventTypes
from eventstore.postgres.async_log import AsyncPostgresEventLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.result import Measure

_COMMANDS: Final = 300
_STREAMS: Final = 20
_RATIO: Final = 1.2
_types: Final = EventTypes()


@_types.event("purse.filled")
@dataclass(frozen=True)
class Filled:
    """Money was put in."""

    amount: int


@dataclass(frozen=True)
class Fill:
    """Puts money in."""

    purse: str
    amount: int


def _decide(command: Fill, _balance: int) -> Filled:
    return Filled(command.amount)


def _evolve(balance: int, filled: Filled) -> int:
    return balance + filled.amount


_purses: Final[Decider[Fill, Filled, int]] = Decider(
    category="purse",
    decide=_decide,
    evolve=_evolve,
    initial_state=int,
    commands=(Fill,),
    stream_id=lambda command: command.purse,
    state_type=int,
)


def concurrent_commands(dsn: str, rounds: int) -> tuple[bool, Measure]:
    """Returns whether every command was stored once, and how long all of them took at once."""
    return asyncio.run(_measured(dsn, rounds))


async def _measured(dsn: str, rounds: int) -> tuple[bool, Measure]:
    at_once, in_turn, right = [], [], True
    async with _opened(dsn) as store:
        await store.handle(Fill("warm", 1))
        for number in range(rounds):
            commands = [Fill(f"a{number}-{k % _STREAMS}", 1) for k in range(_COMMANDS)]
            began = time.perf_counter()
            handled = await asyncio.gather(*map(store.handle, commands))
            at_once.append(time.perf_counter() - began)
            versions = Counter(one.version for one in handled)
            right = right and set(versions.values()) == {_STREAMS}

            commands = [Fill(f"b{number}-{k % _STREAMS}", 1) for k in range(_COMMANDS)]
            began = time.perf_counter()
            for command in commands:
                await store.handle(command)
            in_turn.append(time.perf_counter() - began)
    return right, faster(
        f"seconds for {_COMMANDS} commands at once on {_STREAMS} streams, beside one by one",
        ours=median(at_once),
        peer=median(in_turn),
        limit=None,
        target=_RATIO,
    )


@asynccontextmanager
async def _opened(dsn: str) -> AsyncIterator[AsyncEventStore]:
    log = AsyncPostgresEventLog(dsn)
    async with AsyncEventStore(log, types=_types, deciders=[_purses]) as store:
        yield store
