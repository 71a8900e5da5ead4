"""Streams of counters to compact, and what they fold to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from eventstore.deciding.decider import Decider
from eventstore.log import WHOLE_STREAM, StreamPart
from eventstore.model.event import SNAPSHOT_TYPE, AppendRequest, StoredEvent, StreamAppend
from eventstore.model.expected_version import ANY
from eventstore.planning.snapshotting import BEGINNING, Base, state_at
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.privacy.personal import Personal  # noqa: TC001  # read when the class is declared
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventTypes
from eventstore.upkeep.compaction import StreamFold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventstore.postgres.log import PostgresEventLog

types = EventTypes()
STREAM = "counter-1"
ORIGINALS = StreamPart(archived=True)


@types.event("counter.added", tags=lambda event: [f"parity:{event.number % 2}"])
@dataclass(frozen=True)
class Added:
    number: int


@types.event("counter.doubled")
@dataclass(frozen=True)
class Doubled:
    """Without a tag: an append of one to a known version is a plain INSERT."""

    number: int = 0


@types.event("counter.named", subject="person")
@dataclass(frozen=True)
class Named:
    person: str
    name: Personal[str]


@dataclass(frozen=True)
class Counter:
    total: int = 0
    events: int = 0
    name: str | None = None


def evolve(state: Counter, event: Any) -> Counter:
    state = replace(state, events=state.events + 1)
    if isinstance(event, Named):
        return replace(state, name=str(event.name))
    return replace(state, total=state.total * 2 % 1_000_003 + event.number)


def counting(evolve: Any = evolve, version: int = 1) -> Decider[Any, Any, Any]:
    return Decider(
        category="counter",
        decide=lambda command, state: None,  # noqa: ARG005
        evolve=evolve,
        initial_state=Counter,
        commands=(),
        stream_id=str,
        version=version,
    )


class Streams:
    """Streams of counters, written and folded as an application would."""

    def __init__(self, log: PostgresEventLog, dsn: str, tenant: str = "default") -> None:
        self.log = log
        self.dsn = dsn
        self.ring = MemoryKeyRing()
        self.fold = StreamFold(counting(), Codec(types, self.ring), tenant)
        from eventstore.postgres.compaction import PostgresCompactor

        self.compactor = PostgresCompactor(dsn)

    def append(self, *events: object, stream: str = STREAM, expected: int = ANY) -> int:
        tenant = self.fold.tenant
        version = self.log.stream_version(tenant, stream)
        made = tuple(
            self.fold.codec.encode(event, tenant=tenant, stream=stream, stream_position=place)
            for place, event in enumerate(events, version + 1)
        )
        request = AppendRequest((StreamAppend(stream, made, expected),), tenant)
        return self.log.append(request).version

    def read(self, part: StreamPart = WHOLE_STREAM, stream: str = STREAM) -> list[StoredEvent]:
        return list(self.log.read_stream(self.fold.tenant, stream, part))

    def rows(self, stream: str = STREAM) -> list[tuple[int, str]]:
        return [(row.stream_position, row.type) for row in self.read(stream=stream)]

    def state(self, stream: str = STREAM) -> Counter | None:
        """By what stands in the stream; None if that cannot be read without the originals."""
        return self.after(BEGINNING, self.read(stream=stream))

    def after(self, base: Base | None, rows: Iterable[StoredEvent]) -> Counter | None:
        state = None if base is None else state_at(self.fold.decider, base)
        for row in rows:
            if row.type == SNAPSHOT_TYPE:
                base = self.fold.base_of(row)
                state = None if base is None else state_at(self.fold.decider, base)
            elif state is not None:
                state = evolve(state, self.fold.codec.decode(row))
        return state

    def truth(self, stream: str = STREAM) -> Counter | None:
        return self.after(BEGINNING, self.read(ORIGINALS, stream=stream))

    def compact(self, through: int | None = None, **changes: Any) -> tuple[str, int, int]:
        return tuple(self.compactor.compact(replace(self.fold, **changes), STREAM, through))  # type: ignore[return-value]

    def check_every_version(self) -> None:
        """The fold over the `$snapshot` is that of the originals at each version it still has."""
        first = self.read()[0].stream_position
        for version in range(first, self.log.stream_version(self.fold.tenant, STREAM) + 1):
            compacted = self.after(BEGINNING, self.read(StreamPart(through=version)))
            originals = self.after(BEGINNING, self.read(replace(ORIGINALS, through=version)))
            assert originals == compacted


@pytest.fixture
def streams(pg_log: PostgresEventLog, store_dsn: str) -> Streams:
    return Streams(pg_log, store_dsn)
