"""PostgresKeyRing: subject keys in a separate schema, wrapped by a master key."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from eventstore.errors import AccessRefusedError, SubjectKeyError
from eventstore.forking import renew_after_fork
from eventstore.postgres.connection import check_address
from eventstore.postgres.errors import translated
from eventstore.postgres.sessions import Sessions
from eventstore.privacy.keyring import CACHE_S_MAX, SubjectKey, check_subject, refuse_unknown
from eventstore.privacy.master_key import KEY_BYTES
from eventstore.privacy.sealing import unambiguous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventstore.privacy.master_key import MasterKeys

CACHE_S: Final = 30.0
"""How long a key is cached in memory, in seconds."""

CACHED_MAX: Final = 10_000
"""Maximum cached keys; some hundred bytes each."""

CONNECTIONS_MAX: Final = 4
"""Most keys come from memory."""

BATCH: Final = 500
"""Keys that a rotation locks at a time."""

_SELECT: Final = """
SELECT wrapped_key, master_key_id, generation
  FROM eventstore_keys.subject_keys
 WHERE tenant = %s AND subject = %s
"""
_INSERT: Final = """
INSERT INTO eventstore_keys.subject_keys (tenant, subject, wrapped_key, master_key_id)
VALUES (%s, %s, %s, %s)
ON CONFLICT (tenant, subject) DO NOTHING
"""
_SHRED: Final = "SELECT eventstore_keys.shred(%s, %s)"
_WITH_DEAD_ROWS: Final = ("eventstore_keys.subject_keys", "eventstore.snapshots")
_THERE: Final = "SELECT to_regclass(%s) IS NOT NULL"
_FORGOTTEN: Final = """
SELECT generation, shredded_at > clock_timestamp() - make_interval(secs => %s)
  FROM eventstore_keys.subject_keys
 WHERE tenant = %s AND subject = %s AND wrapped_key IS NULL
   FOR UPDATE
"""
_READMIT: Final = """
UPDATE eventstore_keys.subject_keys
   SET wrapped_key = %s, master_key_id = %s, generation = %s, shredded_at = NULL
 WHERE tenant = %s AND subject = %s
"""
_HELD: Final = "SELECT row_security_active('eventstore_keys.subject_keys')"
_MASTERS: Final = """
SELECT DISTINCT master_key_id
  FROM eventstore_keys.subject_keys
 WHERE wrapped_key IS NOT NULL
"""
_NEXT: Final = """
SELECT tenant, subject, generation, wrapped_key, master_key_id
  FROM eventstore_keys.subject_keys
 WHERE wrapped_key IS NOT NULL AND master_key_id <> %s AND (tenant, subject) > (%s, %s)
 ORDER BY tenant, subject
 LIMIT %s
   FOR UPDATE
"""
_REWRAP: Final = """
UPDATE eventstore_keys.subject_keys
   SET wrapped_key = %s, master_key_id = %s
 WHERE tenant = %s AND subject = %s
"""


class _Cached(NamedTuple):
    expires_at: float
    generation: int
    key: SubjectKey | None


class PostgresKeyRing:
    """A `KeyRing` in a Postgres database: the one of the events, or preferably another.

    `shred` removes the key from the table. The key remains in dead rows until vacuum, in the
    write-ahead log until its files are recycled, and in backups of this database: keep them for a
    short time. Reading it there also requires a master key.

    Args:
        dsn: The database; never shown.
        master_keys: The keys that wrap the subject keys.
        cache_s: Seconds for which a key is cached. A key that another process destroys can be used
            here for that time. With 0, each use queries the database.
        clock: Monotonic seconds.

    Raises:
        StoreUnavailableError: The database cannot be reached.
    """

    def __init__(
        self,
        dsn: str,
        master_keys: MasterKeys,
        *,
        cache_s: float = CACHE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= cache_s <= CACHE_S_MAX:
            raise SubjectKeyError(
                f"keys may be cached for at most {CACHE_S_MAX:g} seconds",
                detail=f"cache_s is {cache_s!r:.40}",
                hint="a process can use a destroyed key until its cache expires",
            )
        check_address(dsn)
        self._sessions = Sessions(dsn, CONNECTIONS_MAX)
        self._master_keys = master_keys
        self._cache_s = cache_s
        self._clock = clock
        self._lock = threading.Lock()
        self._cache: dict[tuple[str, str], _Cached] = {}
        self._changes = 0
        renew_after_fork(self)

    def __repr__(self) -> str:
        return f"PostgresKeyRing({self._master_keys!r})"

    def key_of(
        self, tenant: str, subject: str, *, create: bool = False, generation: int = 1
    ) -> SubjectKey | None:
        """See `KeyRing.key_of`."""
        cached = self._cache.get((tenant, subject))
        if (
            cached is not None
            and cached.generation >= generation
            and self._clock() < cached.expires_at
        ):
            return cached.key
        # read before the query: a concurrent shred in this process makes the query's result stale
        changes, asked_at = self._changes, self._clock()
        check_subject(subject)
        with self._session(tenant) as connection:
            row = connection.execute(_SELECT, (tenant, subject)).fetchone()
            if row is None and create:
                self._insert(connection, tenant, subject)
                # another process may have inserted its key first, which is then the subject's
                row = connection.execute(_SELECT, (tenant, subject)).fetchone()
        if row is None:
            refuse_unknown(subject)
        wrapped, master, found = row
        key = None
        if wrapped is not None:
            bound_to = _bound_to(tenant, subject, found)
            key = SubjectKey(self._master_keys.unwrap(wrapped, master, bound_to), found)
        self._remember((tenant, subject), _Cached(asked_at + self._cache_s, found, key), changes)
        return key

    def shred(self, tenant: str, subject: str) -> bool:
        """See `KeyRing.shred`; also deletes saved states in the same database."""
        check_subject(subject)
        try:
            with self._session(tenant) as connection:
                return bool(_only(connection.execute(_SHRED, (tenant, subject)).fetchone()))
        finally:
            self._forget(tenant, subject)

    def vacuum(self) -> bool:
        """Vacuums the tables of keys and saved states, so that their files lose dead rows.

        Returns:
            Whether the tables were vacuumed; False if the role lacks the privilege.
        """
        refused: list[str | None] = []
        try:
            with self._sessions.plain() as connection:
                connection.add_notice_handler(lambda said: refused.append(said.severity))
                connection.autocommit = True
                try:
                    for table in _WITH_DEAD_ROWS:
                        if connection.execute(_THERE, (table,)).fetchone() == (True,):
                            connection.execute(f"VACUUM {table}".encode())
                finally:
                    connection.autocommit = False
        except psycopg.Error as error:
            raise translated(error) from error
        return not refused

    def readmit(self, tenant: str, subject: str) -> bool:
        """See `KeyRing.readmit`.

        Raises:
            SubjectKeyError: The subject was forgotten less than `CACHE_S_MAX` seconds ago. Another
                process may still encrypt with the old key, and its values would be lost.
        """
        check_subject(subject)
        try:
            with self._session(tenant) as connection:
                values = CACHE_S_MAX, tenant, subject
                row = connection.execute(_FORGOTTEN, values).fetchone()
                if row is None:
                    return False
                generation, just_now = row
                if just_now:
                    raise _too_soon(subject)
                made = self._new_key(tenant, subject, generation + 1)
                connection.execute(_READMIT, (*made, generation + 1, tenant, subject))
                return True
        finally:
            self._forget(tenant, subject)

    def rotate(self, master_keys: MasterKeys) -> int:
        """See `KeyRing.rotate`; the role must own the table.

        A process that still uses the old master key may add keys wrapped by it. Call this method
        again after all processes have the new one, until it returns 0.

        Raises:
            SubjectKeyError: A key is wrapped by an unknown master key, and no key was changed; or
                some keys cannot be unwrapped, and all others were wrapped again.
            AccessRefusedError: The role sees the keys of one tenant only.
        """
        with self._session(None) as connection:
            _check_rotation(connection, master_keys)
        self._master_keys = master_keys
        done, failed, after = 0, 0, ("", "")
        while True:
            with self._session(None) as connection:
                values = master_keys.current, *after, BATCH
                rows = connection.execute(_NEXT, values).fetchall()
                rewrapped = [found for row in rows if (found := _rewrapped(master_keys, row))]
                connection.cursor().executemany(_REWRAP, rewrapped)
            done += len(rewrapped)
            failed += len(rows) - len(rewrapped)
            if len(rows) < BATCH:
                break
            after = rows[-1][:2]
        if failed:
            raise SubjectKeyError(
                "some keys cannot be unwrapped, and were left unchanged",
                detail=f"{failed:,} failed, {done:,} were wrapped again",
                hint=("their rows were altered, or the master key of that name is a different one"),
            )
        return done

    def close(self) -> None:
        """See `KeyRing.close`."""
        self._sessions.close()
        self._cache.clear()

    def after_fork(self) -> None:
        """See `Forked`."""
        self._lock = threading.Lock()

    @contextmanager
    def _session(self, tenant: str | None) -> Iterator[psycopg.Connection[Any]]:
        try:
            with self._sessions.transaction(tenant) as connection:
                yield connection
        except psycopg.Error as error:
            raise translated(error) from error

    def _insert(self, connection: psycopg.Connection[Any], tenant: str, subject: str) -> None:
        made = self._new_key(tenant, subject, 1)
        connection.execute(_INSERT, (tenant, subject, *made))

    def _new_key(self, tenant: str, subject: str, generation: int) -> tuple[bytes, str]:
        master_keys = self._master_keys  # read once: a rotation may replace them meanwhile
        bound_to = _bound_to(tenant, subject, generation)
        return master_keys.wrap(os.urandom(KEY_BYTES), bound_to), master_keys.current

    def _remember(self, whose: tuple[str, str], cached: _Cached, changes: int) -> None:
        with self._lock:
            if changes == self._changes:
                if len(self._cache) >= CACHED_MAX:
                    self._cache.clear()
                self._cache[whose] = cached

    def _forget(self, tenant: str, subject: str) -> None:
        with self._lock:
            self._changes += 1
            self._cache.pop((tenant, subject), None)


def _bound_to(tenant: str, subject: str, generation: int) -> bytes:
    return unambiguous("subject key", tenant, subject, str(generation))


def _only(row: tuple[Any, ...] | None) -> Any:
    return None if row is None else row[0]


def _too_soon(subject: str) -> SubjectKeyError:
    return SubjectKeyError(
        "the subject's key was destroyed moments ago",
        detail=f"subject {subject:.100}, less than {CACHE_S_MAX:g} seconds ago",
        hint="retry when no process caches the old key any more",
    )


def _check_rotation(connection: psycopg.Connection[Any], master_keys: MasterKeys) -> None:
    if _only(connection.execute(_HELD).fetchone()):
        raise AccessRefusedError(
            "a rotation of the master key needs access to the keys of every tenant",
            hint="run it as the owner of eventstore_keys.subject_keys",
        )
    missing = {row[0] for row in connection.execute(_MASTERS)} - set(master_keys.keys)
    if missing:
        raise SubjectKeyError(
            "keys are wrapped by an unknown master key",
            detail=f"master key {', '.join(sorted(missing))}",
            hint="provide the old keys beside the new one until the rotation is done",
        )


def _rewrapped(
    master_keys: MasterKeys, row: tuple[str, str, int, bytes, str]
) -> tuple[bytes, str, str, str] | None:
    tenant, subject, generation, wrapped, master_key_id = row
    bound_to = _bound_to(tenant, subject, generation)
    try:
        key = master_keys.unwrap(wrapped, master_key_id, bound_to)
    except SubjectKeyError:
        return None
    return master_keys.wrap(key, bound_to), master_keys.current, tenant, subject
