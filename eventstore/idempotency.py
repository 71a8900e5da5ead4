"""Idempotency of commands: what a command is for its key, and which events came of it."""

from __future__ import annotations

import hashlib
import hmac
import typing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from eventstore.errors import BatchRefusedError, IdempotencyConflictError, SubjectKeyError
from eventstore.event_id import new_event_id
from eventstore.exactness import fault_of
from eventstore.personal import inner_type
from eventstore.wire import encoded

if TYPE_CHECKING:
    from eventstore.codec import Codec
    from eventstore.log import Repeated

_COMMANDS: Final = "headwater commands"
"""Subject of the key for digests of commands with personal fields, one in each tenant."""

_TAIL: Final = 0xFFF << 64 | (1 << 62) - 1
"""The bits of a UUID of version 7 that are not its time, version or variant."""


def command_digest(codec: Codec, tenant: str, command: Any) -> bytes:
    """Returns what a command is for its idempotency key: its class and its fields, exactly.

    SHA-256, unless a field of it is `Personal`: who has the database could then confirm a guess of
    it. So such a command's digest is an HMAC under a key of the tenant's own in the key ring.

    Raises:
        BatchRefusedError: It has values that are not exact, such as NaN.
        SubjectKeyError: It has personal fields, and there is no key ring.
    """
    fault = fault_of(command, command)
    name = type(command).__qualname__
    if fault is not None:
        raise BatchRefusedError(
            f"command {name} with an idempotency key is made of values that JSON can hold",
            detail=f"{fault.path.removeprefix('.')} {fault.rule}".strip(),
        )
    data = b"command %d:%s %s" % (len(name.encode()), name.encode(), encoded(command))
    if not _has_personal(type(command)):  # type: ignore[arg-type]  # a class can be hashed
        return hashlib.sha256(data).digest()
    ring = codec.keyring
    key = None if ring is None else ring.key_of(tenant, _COMMANDS, create=True)
    if key is None:
        raise SubjectKeyError(
            f"command {name} has personal fields and an idempotency key, which need a key ring",
            hint="give the store a keyring, such as PostgresKeyRing",
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


def check_same(known: Repeated, digest: bytes) -> None:
    """Checks that a key was used for the same before.

    Raises:
        IdempotencyConflictError: It was used for something else.
    """
    if not hmac.compare_digest(known.digest, digest):
        raise IdempotencyConflictError(
            "the idempotency key was used for another payload",
            detail=f"at global position {known.appended.token.global_position}",
            hint="a key names one intention; take a new key for a new one",
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
