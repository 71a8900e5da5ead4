'''The event store: commands are refused or become events; streams are the truth.

A command may be refused; an event is a fact. What happened is declared as events, what may happen
as a decider, here written as a class:

>>> from dataclasses import dataclass
>>> from eventstore import EventStore, Rejected, aggregate, event, evolves, handles
>>> from eventstore.memory import MemoryEventLog

>>> @event("seat.reserved")
... class SeatReserved:
...     show: str
...     guest: str

>>> @dataclass(frozen=True)
... class ReserveSeat:
...     show: str
...     guest: str

>>> class SoldOut(Rejected):
...     """Every seat is taken."""

>>> @aggregate("show", identity="show")
... class Show:
...     guests: tuple[str, ...] = ()
...
...     @handles
...     def reserve(self, command: ReserveSeat) -> SeatReserved:
...         if len(self.guests) == 2:
...             raise SoldOut("there are two seats")
...         return SeatReserved(command.show, command.guest)
...
...     @evolves
...     def _reserved(self, event: SeatReserved) -> None:
...         self.guests += (event.guest,)

A store takes the commands. `PostgresEventLog(dsn)` of `eventstore.postgres.log` stands in for the
memory, and nothing else changes:

>>> store = EventStore(MemoryEventLog(), deciders=[Show])
>>> store.handle(ReserveSeat("tosca", "Ada")).version
1
>>> store.handle(ReserveSeat("tosca", "Bob"), idempotency_key="bob-1").events
(SeatReserved(show='tosca', guest='Bob'),)

A key makes a command happen once, however often it is sent; a rule that refuses writes nothing:

>>> store.handle(ReserveSeat("tosca", "Bob"), idempotency_key="bob-1").repeated
True
>>> store.handle(ReserveSeat("tosca", "Cleo"))
Traceback (most recent call last):
    ...
SoldOut: there are two seats

What was, at any time, is read from the events:

>>> store.state(Show, "tosca", at_version=1).value
Show(guests=('Ada',))
>>> [(found.stream_position, found.event.guest) for found in store.read_stream("show-tosca")]
[(1, 'Ada'), (2, 'Bob')]

Rules are tested without a store:

>>> from eventstore import scenario
>>> full = SeatReserved("tosca", "Ada"), SeatReserved("tosca", "Bob")
>>> _ = scenario(Show).given(*full).when(ReserveSeat("tosca", "Cleo")).then_rejected(SoldOut)
'''

from __future__ import annotations

from eventstore.async_store import AsyncEventStore
from eventstore.deciding.aggregate import aggregate, evolves, handles
from eventstore.deciding.context import Context, Occurrence
from eventstore.deciding.decider import Decider, decider_of
from eventstore.deciding.scenario import scenario
from eventstore.errors import (
    AccessRefusedError,
    AuditError,
    BatchRefusedError,
    CheckpointBeyondHeadError,
    CompactionError,
    ConditionFailedError,
    ContentionError,
    DependencyAwayError,
    EffectRefusedError,
    EventRefusedError,
    EventStoreError,
    IdempotencyConflictError,
    IsolationRefusedError,
    NameRefusedError,
    Rejected,
    ResultUnknownError,
    SchemaMissingError,
    StoreUnavailableError,
    SubjectKeyError,
    SubscriptionError,
    UndeclaredError,
    UpcastError,
    WaitTimeoutError,
    WrongExpectedVersionError,
    WrongKindError,
)
from eventstore.log import LogPart, StreamPart
from eventstore.model.event import Appended, IntegrationEvent
from eventstore.model.expected_version import ANY, NO_STREAM, STREAM_EXISTS
from eventstore.model.query import Condition, Query, QueryItem, tagged
from eventstore.model.token import Token
from eventstore.model.unknown import UnknownPolicy
from eventstore.planning.handling import Handled
from eventstore.planning.loading import State
from eventstore.privacy.personal import Personal, Redacted
from eventstore.privacy.personal_tags import personal_tag
from eventstore.serialization.recorded import CompactedPrefix, RecordedEvent
from eventstore.serialization.registry import EventData, EventTypes, event, upcast
from eventstore.store import EventStore

__all__ = [
    "ANY",
    "NO_STREAM",
    "STREAM_EXISTS",
    "AccessRefusedError",
    "Appended",
    "AsyncEventStore",
    "AuditError",
    "BatchRefusedError",
    "CheckpointBeyondHeadError",
    "CompactedPrefix",
    "CompactionError",
    "Condition",
    "ConditionFailedError",
    "ContentionError",
    "Context",
    "Decider",
    "DependencyAwayError",
    "EffectRefusedError",
    "EventData",
    "EventRefusedError",
    "EventStore",
    "EventStoreError",
    "EventTypes",
    "Handled",
    "IdempotencyConflictError",
    "IntegrationEvent",
    "IsolationRefusedError",
    "LogPart",
    "NameRefusedError",
    "Occurrence",
    "Personal",
    "Query",
    "QueryItem",
    "RecordedEvent",
    "Redacted",
    "Rejected",
    "ResultUnknownError",
    "SchemaMissingError",
    "State",
    "StoreUnavailableError",
    "StreamPart",
    "SubjectKeyError",
    "SubscriptionError",
    "Token",
    "UndeclaredError",
    "UnknownPolicy",
    "UpcastError",
    "WaitTimeoutError",
    "WrongExpectedVersionError",
    "WrongKindError",
    "aggregate",
    "decider_of",
    "event",
    "evolves",
    "handles",
    "personal_tag",
    "scenario",
    "tagged",
    "upcast",
]
