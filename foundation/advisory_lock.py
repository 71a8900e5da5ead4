"""Advisory locks of Postgres: SQL that computes their keys, takes them and frees them.

A key is data that processes share, also those of an older release: its numbers and names stay.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdvisoryLock:
    """A kind of lock.

    Args:
        key: SQL of its two integers, with a placeholder for each parameter of a statement.
    """

    key: str

    @classmethod
    def named(cls, name: str, *, parts: int = 1) -> AdvisoryLock:
        """Returns a kind that is known by a name; each lock of it by the parts of another name."""
        return cls(f"hashtext('{name}'), {_hash(parts)}")

    @classmethod
    def numbered(cls, number: int, *, parts: int = 1) -> AdvisoryLock:
        """Returns a kind that is known by a number; each lock of it by the parts of a name."""
        return cls(f"{number}, {_hash(parts)}")

    @property
    def in_session(self) -> str:
        """Waits for the lock and holds it until it is freed or the session ends."""
        return f"SELECT pg_advisory_lock({self.key})"

    @property
    def in_session_if_free(self) -> str:
        """Takes the lock for the session without waiting; selects whether it has it."""
        return f"SELECT pg_try_advisory_lock({self.key})"

    @property
    def in_session_shared(self) -> str:
        """Waits until no other session holds the lock alone, and shares it."""
        return f"SELECT pg_advisory_lock_shared({self.key})"

    @property
    def in_transaction(self) -> str:
        """Waits for the lock and holds it until the transaction ends."""
        return f"SELECT pg_advisory_xact_lock({self.key})"

    @property
    def in_transaction_shared(self) -> str:
        """Waits until no other session holds the lock alone, and shares it in the transaction."""
        return f"SELECT pg_advisory_xact_lock_shared({self.key})"

    @property
    def free(self) -> str:
        """Frees a lock of the session."""
        return f"SELECT pg_advisory_unlock({self.key})"

    @property
    def free_shared(self) -> str:
        """Frees a shared lock of the session."""
        return f"SELECT pg_advisory_unlock_shared({self.key})"


def _hash(parts: int) -> str:
    name = " || '/' || ".join(["%s"] * parts)
    return f"hashtext({name})"
