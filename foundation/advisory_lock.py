"""Advisory locks of Postgres: SQL that computes their keys, acquires them and releases them.

Processes of different releases must compute the same key, so its numbers and names never change.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdvisoryLock:
    """A kind of lock.

    Args:
        key: SQL of the two integers of its key, with a placeholder for each parameter.
    """

    key: str

    @classmethod
    def named(cls, name: str, *, parts: int = 1) -> AdvisoryLock:
        """Returns a kind with a name; the parts of a further name identify each of its locks."""
        return cls(f"hashtext('{name}'), {_hash(parts)}")

    @classmethod
    def numbered(cls, number: int, *, parts: int = 1) -> AdvisoryLock:
        """Returns a kind with a number; the parts of a name identify each of its locks."""
        return cls(f"{number}, {_hash(parts)}")

    @property
    def in_session(self) -> str:
        """Waits for the lock and holds it until it is released or the session ends."""
        return f"SELECT pg_advisory_lock({self.key})"

    @property
    def in_session_if_free(self) -> str:
        """Tries to acquire the lock for the session without waiting; selects whether it did."""
        return f"SELECT pg_try_advisory_lock({self.key})"

    @property
    def in_session_shared(self) -> str:
        """Waits for a shared lock and holds it until it is released or the session ends."""
        return f"SELECT pg_advisory_lock_shared({self.key})"

    @property
    def in_transaction(self) -> str:
        """Waits for the lock and holds it until the transaction ends."""
        return f"SELECT pg_advisory_xact_lock({self.key})"

    @property
    def in_transaction_shared(self) -> str:
        """Waits for a shared lock and holds it until the transaction ends."""
        return f"SELECT pg_advisory_xact_lock_shared({self.key})"

    @property
    def free(self) -> str:
        """Releases a lock of the session."""
        return f"SELECT pg_advisory_unlock({self.key})"

    @property
    def free_shared(self) -> str:
        """Releases a shared lock of the session."""
        return f"SELECT pg_advisory_unlock_shared({self.key})"


def _hash(parts: int) -> str:
    name = " || '/' || ".join(["%s"] * parts)
    return f"hashtext({name})"
