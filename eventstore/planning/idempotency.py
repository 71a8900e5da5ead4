"""Idempotency of commands: what a command is for its key, and which events came of it."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import typing
from functools import lru_cache
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from eventstore.errors import BatchRefusedError, IdempotencyConflictError, SubjectKeyError
from eventstore.model.event_id import new_event_id
from eventstore.privacy.personal import inner_type
from eventstore.serialization.exactness import fault_of
from eventstore.serialization.wire import encoded, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from eventstore.log import Repeated
    from eventstore.serialization.codec import Codec

_Field = dataclasses.Field[Any]

_COMMANDS: Final = "headwater commands"
"""Subject of the key for digests of commands with personal fields, one in each tenant."""

_SPARE_MAX: Final = 8
"""Fields of which each choice is tried: 256 digests, for a key that was used before only."""

_TAIL: Final = 0xFFF << 64 | (1 << 62) - 1
"""The bits of a UUID of version 7 that are not its time, version or variant."""


def command_digest(codec: Codec, tenant: str, command: Any) -> bytes:
    """Returns what a command is for its idempotency key: its class and its fields, exactly.

    Fields of dataclasses that have their default are left out, so that a deploy can add a field:
    the same command, sent again, is the same. So are those declared `field(compare=False)`, such as
    the time at which a request came in: commands that are equal are one command.

    SHA-256, unless a field of it is `Personal`: who has the database could then confirm a guess of
    it. So such a command's digest is an HMAC under a key of the tenant's own in the key ring.

    Raises:
        BatchRefusedError: It has values that are not exact, such as NaN.
        SubjectKeyError: It has personal fields, and there is no key ring.
    """
    fault = fault_of(command, command)
    if fault is not None:
        raise BatchRefusedError(
            f"command {type(command).__qualname__} has an idempotency key and a value that "
            "JSON cannot represent",
            detail=f"{fault.path.removeprefix('.')} {fault.rule}".strip(),
        )
    return _digest(codec, tenant, command, written(command, _counts))


def significant(event: object) -> bytes:
    """Returns what counts of an event for an idempotency key, as JSON; see `command_digest`."""
    return written(event, _counts)


def earlier_digests(codec: Codec, tenant: str, command: Any) -> Iterator[bytes]:
    """Yields what earlier versions may have stored for a command: every field counted then.

    A field that has its default now may not have been there yet. So each choice of them is tried,
    or where they are many, leaving out those that were declared last.
    """
    yield _digest(codec, tenant, command, encoded(command))
    found = dataclasses.fields(command) if dataclasses.is_dataclass(command) else ()
    spare = [field for field in found if not _counts(field, getattr(command, field.name))]
    for choice in _choices(spare):
        absent = set(map(id, choice))
        data = written(command, lambda field, _, absent=absent: id(field) not in absent)  # type: ignore[misc]
        yield _digest(codec, tenant, command, data)


def _choices(fields: list[_Field]) -> Iterator[tuple[_Field, ...]]:
    counts = range(len(fields) + 1)
    if len(fields) > _SPARE_MAX:
        return (tuple(fields[n:]) for n in counts)
    return chain.from_iterable(combinations(fields, n) for n in counts)


def _counts(field: _Field, value: object) -> bool:
    """Whether a field says something about what a command is."""
    if not field.compare:
        return False
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    else:
        return True
    return fault_of(value, default) is not None


def _digest(codec: Codec, tenant: str, command: Any, fields: bytes) -> bytes:
    name = type(command).__qualname__
    data = b"command %d:%s %s" % (len(name.encode()), name.encode(), fields)
    if not _has_personal(type(command)):  # type: ignore[arg-type]  # a class can be hashed
        return hashlib.sha256(data).digest()
    ring = codec.keyring
    key = None if ring is None else ring.key_of(tenant, _COMMANDS, create=True)
    if key is None:
        raise SubjectKeyError(
            f"command {name} has personal fields and an idempotency key, and needs a key ring",
            hint="pass a keyring to the store, such as PostgresKeyRing",
        )
    return hmac.digest(key.secret, data, hashlib.sha256)


@lru_cache(maxsize=4096)
def _has_personal(command: type[Any]) -> bool:
    try:
        hints: dict[str, Any] = typing.get_type_hints(command, include_extras=True)
    except (NameError, TypeError):
        # its types are out of sight, but what is written there is not
        return any("Personal" in str(hint) for hint in command.__annotations__.values())
    return any(inner_type(hint) is not None for hint in hints.values())


def check_same(known: Repeated, digest: bytes, earlier: Iterable[bytes] = ()) -> None:
    """Checks that a key was used for the same before.

    Args:
        known: What was done under the key.
        digest: Of what is to be done.
        earlier: What earlier versions would have stored for it.

    Raises:
        IdempotencyConflictError: It was used for something else.
    """
    if not any(hmac.compare_digest(known.digest, each) for each in chain((digest,), earlier)):
        raise IdempotencyConflictError(
            "the idempotency key was used for another payload",
            detail=f"at global position {known.appended.token.global_position}",
            hint="use a new key for a new command",
        )


def keyed_event_id(tenant: str, key: str, from_end: int) -> UUID:
    """Returns an id for an event that a command with a key leads to.

    A UUID of version 7, whose random bits are a digest of the key. So those who have the key find
    the events of a repeated command again, and nothing else needs to be stored.

    Args:
        tenant: Whose stream.
        key: The idempotency key.
        from_end: Which of the command's events: 0 is the last.
    """
    return UUID(int=new_event_id().int & ~_TAIL | _tail(tenant, key, from_end))


def made_under(event_id: UUID, tenant: str, key: str, from_end: int) -> bool:
    """Returns whether `keyed_event_id` made this id, at any time."""
    return event_id.int & _TAIL == _tail(tenant, key, from_end)


def _tail(tenant: str, key: str, from_end: int) -> int:
    text = f"{len(tenant)}:{tenant}{len(key)}:{key}{from_end}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16]) & _TAIL
