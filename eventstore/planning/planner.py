"""Planner: what `EventStore` and `AsyncEventStore` share, which is all but waiting for the log."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from eventstore.deciding.context import NO_CONTEXT, Context
from eventstore.deciding.decider import Decider, decider_of
from eventstore.deciding.fold_identity import fold_name, same_fold
from eventstore.errors import UndeclaredError
from eventstore.log import LogPart, StreamPart
from eventstore.model.callables import check_function, check_instance, check_kind
from eventstore.model.expected_version import ANY
from eventstore.model.names import check_category, check_stream, check_tenant
from eventstore.model.query import Query
from eventstore.planning.appending import appending
from eventstore.planning.handling import ATTEMPTS_MAX, Instruction, handling, key_of
from eventstore.planning.loading import State, loading
from eventstore.planning.operation import Access
from eventstore.serialization.recorded import RecordedEvent
from foundation.suggestion import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

    from eventstore.model.event import Appended
    from eventstore.planning.appending import Terms, Wanted
    from eventstore.planning.handling import Handled
    from eventstore.planning.operation import Plan
    from eventstore.privacy.keyring import KeyRing
    from eventstore.serialization.codec import Codec
    from eventstore.serialization.registry import EventTypes

S = TypeVar("S")
AnyDecider = Decider[Any, Any, Any]


def codec_of(types: EventTypes, keyring: KeyRing | None) -> Codec:
    """Returns the codec of a store.

    Raises:
        WrongKindError: The registry or the key ring is a class, or of another kind.
    """
    check_instance("the registry of event types", types, ("named", "of"))
    if keyring is not None:
        check_instance("the key ring", keyring, ("key_of",))
        check_function("key_of of the key ring", keyring.key_of)
    from eventstore.serialization.codec import Codec  # noqa: PLC0415  # loads cryptography

    return Codec(types, keyring)


def in_category(category: str, part: LogPart) -> LogPart:
    """Returns the same part of the log, of one category's streams only.

    Raises:
        NameRefusedError: There is no such category.
        WrongKindError: The part is of another kind.
    """
    query = replace(checked_part(part).query, category=check_category(category))
    return replace(part, query=query)


def checked_part(part: LogPart) -> LogPart:
    """Returns a part of the log.

    Raises:
        WrongKindError: It is of another kind, such as a part of a stream.
    """
    check_kind("the part of the log", part, LogPart, "such as LogPart(limit=10)")
    return part


class Planner:
    """Plans what a store is asked for.

    Args:
        codec: Encodes and decodes its events.
        deciders: Deciders, or classes declared by `aggregate`.
        tenant: The tenant of its streams.

    Raises:
        UndeclaredError: Two deciders handle the same command, or fold one category differently.
        NameRefusedError: The tenant's name is invalid.
    """

    def __init__(self, codec: Codec, deciders: Iterable[Any], tenant: str) -> None:
        self.codec: Final = codec
        self.tenant = check_tenant(tenant)
        self.recorded: Final = partial(RecordedEvent, codec)
        self.deciders: dict[type, AnyDecider] = {}
        self._by_category: dict[str, AnyDecider] = {}
        for decider in map(decider_of, deciders):
            self._check_fold(self._by_category.setdefault(decider.category, decider), decider)
            for command in decider.commands:
                if self.deciders.setdefault(command, decider) is not decider:
                    raise UndeclaredError(f"two deciders handle command {command.__qualname__}")

    def for_tenant(self, tenant: str) -> Self:
        """Returns the same planner for another tenant."""
        made = copy.copy(self)
        made.tenant = check_tenant(tenant)
        return made

    def append(self, wanted: Wanted, terms: Terms, connection: Any) -> Plan[Appended]:
        """Plans an append."""
        return appending(self._access(connection), wanted, terms)

    def handle(  # noqa: PLR0913  # each is one thing that a caller can want
        self,
        command: object,
        *,
        expected_version: int = ANY,
        idempotency_key: str | None = None,
        context: Context = NO_CONTEXT,
        connection: Any = None,
        attempts_max: int = ATTEMPTS_MAX,
        boundary: Query | None = None,
    ) -> Plan[Handled]:
        """Plans a command."""
        check_kind("the context", context, Context, "such as Context(actor=...)")
        if boundary is not None:
            check_kind("the boundary", boundary, Query, 'such as tagged("email:...")')
        access = self._access(connection)
        instruction = Instruction(
            command,
            self.decider_for(command),
            expected_version,
            key_of(access, command, idempotency_key),
            context,
            attempts_max,
            boundary,
        )
        return (yield from handling(access, instruction))

    def state(
        self,
        decider: Decider[Any, Any, S] | type[S],
        identity: str | int | UUID,
        *,
        at_version: int | None = None,
        as_of: datetime | None = None,
        connection: Any = None,
    ) -> Plan[State[S]]:
        """Plans a look at a stream's state."""
        found: Decider[Any, Any, S] = decider_of(decider)
        own = self._by_category.get(found.category)
        if own is not None and fold_name(own) == fold_name(found):
            self._check_fold(own, found)  # they could not tell their saved states apart
        access = self._access(connection)
        stream = found.stream(identity)
        loaded = yield from loading(access, found, stream, at_version=at_version, as_of=as_of)
        return State(loaded.value, loaded.version)

    def decider_for(self, command: object) -> AnyDecider:
        """Returns the decider of a command.

        Raises:
            UndeclaredError: No decider of the store takes it.
        """
        found = self.deciders.get(type(command))
        if found is not None:
            return found
        name = type(command).__name__
        known = sorted({kind.__name__ for kind in self.deciders})
        raise UndeclaredError(
            f"no decider handles command {name}",
            detail=f"{len(known)} commands are declared",
            hint=did_you_mean(
                name,
                known,
                "pass the decider in EventStore(log, deciders=[...])",
            ),
        )

    def serial_key(self, command: object, connection: Any) -> tuple[str, str] | None:
        """Returns tenant and stream of a command; None if it joins a caller's transaction.

        That transaction may hold the stream in the database already, so the command waits for no
        other one.

        Raises:
            UndeclaredError: No decider of the store takes it.
            NameRefusedError: The stream cannot have this name.
        """
        if connection is not None:
            return None
        return self.tenant, self.decider_for(command).stream_of(command)

    def checked(self, stream: str, part: StreamPart) -> tuple[str, str, StreamPart]:
        """Returns what to read of the log for a part of a stream.

        Raises:
            NameRefusedError: The stream cannot have this name.
            WrongKindError: The part is of another kind, such as a part of the log.
        """
        check_kind("the part of a stream", part, StreamPart, "such as StreamPart(limit=10)")
        return self.tenant, check_stream(stream), part

    def _check_fold(self, own: AnyDecider, other: AnyDecider) -> None:
        if same_fold(own, other):
            return
        names = [getattr(d.initial_state, "__qualname__", "another") for d in (own, other)]
        raise UndeclaredError(
            f"two deciders of category {own.category} fold its events differently",
            detail=f"{names[0]} and {names[1]}",
            hint="let them share evolve and initial_state; for another fold of the same "
            "events, pass the other decider to state() only",
        )

    def _access(self, connection: Any) -> Access:
        return Access(self.codec, self.tenant, connection)
