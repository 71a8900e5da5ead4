"""KeyRing: the port for subject keys, implemented in Postgres and in memory.

Every implementation guarantees:

- *One key*: a subject has one key at a time, even if two processes create it concurrently.
- *Forgotten stays forgotten*: after `shred` returns, the ring no longer contains the key, and a
  later event does not create another one. New personal data of the subject is refused until
  `readmit` is called; earlier values remain redacted.
- *Lost is not forgotten*: an unknown subject is an error, not a redaction.
- *Bounded delay*: another process may cache a shredded key for at most `CACHE_S_MAX` seconds.

Threads: all methods may be called concurrently.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol

from eventstore.errors import SubjectKeyError
from eventstore.forking import renew_after_fork
from eventstore.model.callables import check_kind
from eventstore.privacy.master_key import KEY_BYTES

if TYPE_CHECKING:
    from eventstore.privacy.master_key import MasterKeys

CACHE_S_MAX: Final = 60.0
"""Longest time for which a process may cache a key, in seconds."""


class SubjectKey(NamedTuple):
    """The key of one subject.

    Attributes:
        secret: 32 bytes.
        generation: 1 for the first key; incremented whenever the subject is readmitted.
    """

    secret: bytes
    generation: int

    def __repr__(self) -> str:
        return f"SubjectKey(secret=<hidden>, generation={self.generation})"


class KeyRing(Protocol):
    """Stores the keys of subjects; the module docstring states the guarantees."""

    def key_of(
        self, tenant: str, subject: str, *, create: bool = False, generation: int = 1
    ) -> SubjectKey | None:
        """Returns a subject's key; None if it was destroyed.

        Args:
            tenant: Tenant of the subject.
            subject: The subject.
            create: Whether to create a key if the subject has never had one.
            generation: A generation that is known to exist; a cached key of an older one is stale.

        Raises:
            SubjectKeyError: There is no key and no record of its destruction, and `create` is not
                set; or the key cannot be unwrapped.
        """
        ...

    def shred(self, tenant: str, subject: str) -> bool:
        """Destroys a subject's key, so that every value encrypted with it is unreadable.

        A subject that never had a key counts as forgotten from now on, too.

        Returns:
            Whether the key existed.

        Raises:
            WrongKindError: The subject is no str, such as a number.
        """
        ...

    def readmit(self, tenant: str, subject: str) -> bool:
        """Allows a new key for a forgotten subject. Erased values stay erased.

        Returns:
            Whether it was forgotten.
        """
        ...

    def rotate(self, master_keys: MasterKeys) -> int:
        """Wraps every key with the current master key.

        It may be interrupted and repeated, and the ring can be used meanwhile.

        Returns:
            The number of keys that were wrapped again.
        """
        ...

    def close(self) -> None:
        """Closes the ring's connections."""
        ...


class MemoryKeyRing:
    """A `KeyRing` in this process's memory, for tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._secrets: dict[tuple[str, str], bytes | None] = {}  # None: forgotten
        self._generations: dict[tuple[str, str], int] = {}
        renew_after_fork(self)

    def after_fork(self) -> None:
        """See `Forked`."""
        self._lock = threading.Lock()

    def key_of(
        self,
        tenant: str,
        subject: str,
        *,
        create: bool = False,
        generation: int = 1,  # noqa: ARG002  # nothing here is out of date
    ) -> SubjectKey | None:
        """See `KeyRing.key_of`."""
        whose = tenant, check_subject(subject)
        with self._lock:
            if whose not in self._secrets:
                if not create:
                    refuse_unknown(subject)
                self._secrets[whose] = os.urandom(KEY_BYTES)
            secret = self._secrets[whose]
            return None if secret is None else SubjectKey(secret, self._generations.get(whose, 1))

    def shred(self, tenant: str, subject: str) -> bool:
        """See `KeyRing.shred`."""
        check_subject(subject)
        with self._lock:
            had = self._secrets.get((tenant, subject)) is not None
            self._secrets[tenant, subject] = None
            return had

    def readmit(self, tenant: str, subject: str) -> bool:
        """See `KeyRing.readmit`."""
        whose = tenant, check_subject(subject)
        with self._lock:
            forgotten = whose in self._secrets and self._secrets[whose] is None
            if forgotten:
                self._generations[whose] = self._generations.get(whose, 1) + 1
                self._secrets[whose] = os.urandom(KEY_BYTES)
            return forgotten

    def rotate(self, master_keys: MasterKeys) -> int:  # noqa: ARG002  # nothing here is wrapped
        """See `KeyRing.rotate`; nothing is wrapped in memory."""
        return 0

    def close(self) -> None:
        """See `KeyRing.close`."""


def check_subject(subject: str) -> str:
    """Returns a subject as it is in events: a str, also where the event's field is a number.

    Raises:
        WrongKindError: It is no str. A key of another kind would be another subject's.
    """
    check_kind("the subject of a key", subject, str, "str(subject)")
    return subject


def refuse_unknown(subject: str) -> NoReturn:
    """Raises the error for a missing key.

    Raises:
        SubjectKeyError: Always.
    """
    raise SubjectKeyError(
        "the subject has no key, and no record of its destruction",
        detail=f"subject {subject:.100}",
        hint="check that this is the key ring with which the events were written; if the key "
        "is permanently lost, shred the subject to read its fields as redacted",
    )
