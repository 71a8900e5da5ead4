"""Operation: the requests of a plan to the log.

A plan is a generator, so the store and its asyncio twin share every decision and differ only in how
they wait. It yields a `Call` and is sent the result (a stream's events as a list), or the error is
thrown into it; it yields a `Pause` and is sent whether the store is being closed meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from eventstore.log import WHOLE_STREAM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventstore.log import StateSnapshot, StreamPart
    from eventstore.model.event import AppendRequest
    from eventstore.model.query import Query
    from eventstore.serialization.codec import Codec

T = TypeVar("T")

PAUSE_FIRST_S: Final = 0.005
PAUSE_S_MAX: Final = 0.2
"""Ten attempts wait for 0.6 s on average, and 1.3 s at most."""


class Call(NamedTuple):
    """A call of one method of the log.

    Attributes:
        method: Its name.
        arguments: Positional arguments.
        options: Keyword arguments.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = {}


class Pause(NamedTuple):
    """A wait before the next attempt.

    Attributes:
        seconds: Longest wait.
    """

    seconds: float


class Finished(NamedTuple):
    """The end of a plan.

    Attributes:
        value: Its result.
    """

    value: Any


Plan = Generator[Call | Pause, Any, T]
"""A generator that returns `T`."""


@dataclass(frozen=True, slots=True)
class Access:
    """Through what a plan reaches the log.

    Attributes:
        codec: Encodes and decodes.
        tenant: The tenant of its streams.
        connection: The caller's transaction, if one is joined.
    """

    codec: Codec
    tenant: str
    connection: Any = None

    def append(self, request: AppendRequest) -> Call:
        """Asks for an append."""
        return Call("append", (request,), {"connection": self.connection})

    def read(self, stream: str, part: StreamPart = WHOLE_STREAM) -> Call:
        """Asks for a stream's events."""
        return Call("read_stream", (self.tenant, stream, part), {"connection": self.connection})

    def version(self, stream: str) -> Call:
        """Asks for a stream's version."""
        return Call("stream_version", (self.tenant, stream), {"connection": self.connection})

    def result_of(self, key: str) -> Call:
        """Asks for what was done under an idempotency key."""
        return Call("result_of", (self.tenant, key), {"connection": self.connection})

    def boundary(self, query: Query) -> Call:
        """Asks for what a decision across streams depends on."""
        options = {} if self.connection is None else {"connection": self.connection}
        return Call("read_boundary", (self.tenant, query), options)

    def snapshot(self, stream: str, fold: str, through: int | None) -> Call:
        """Asks for a saved state."""
        return Call("snapshot", (self.tenant, stream, fold), {"through": through})

    def save_snapshot(self, snapshot: StateSnapshot) -> Call:
        """Asks to save a state."""
        return Call("save_snapshot", (self.tenant, snapshot))


def advanced(
    plan: Plan[Any], answer: object = None, error: Exception | None = None
) -> Call | Pause | Finished:
    """Returns what a plan asks next, given the answer to what it asked before, or the error."""
    try:
        return plan.send(answer) if error is None else plan.throw(error)
    except StopIteration as end:
        return Finished(end.value)


def pause_after(attempts: int) -> Pause:
    """Returns how long to wait after so many attempts: twice as long each time, at random.

    Writers that met once would meet again if they waited equally long.
    """
    longest = min(PAUSE_S_MAX, PAUSE_FIRST_S * 2.0 ** min(attempts - 1, 16))
    return Pause(random.uniform(0, longest))  # noqa: S311  # spreads writers, keeps no secret
