"""CacheServer: the keys, the script and the errors of one Valkey or Redis."""

from __future__ import annotations

import hashlib
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import redis

from projections.errors import (
    CacheFullError,
    CacheReadOnlyError,
    SinkRefusedError,
    SinkUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.planning.view_plan import ViewPlan

TIMEOUT_S: Final = 15.0
"""Timeout of one response. The client retries three times, so a hung server is reported in a
minute."""

SCRIPT: Final = Path(__file__).with_name("write.lua").read_text("utf-8")

_SHA: Final = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

UNDER_WAY_BYTES: Final = 4 * 1024 * 1024
"""Calls sent before responses are read: bounds the buffers on both sides."""

_PASSING: Final = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.NoScriptError,
    redis.exceptions.TryAgainError,
)


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of a view's keys on a server.

    Attributes:
        prefix: Namespace of the project.
        view: The view.
    """

    prefix: str
    view: str

    @property
    def rows(self) -> str:
        """Prefix of row keys; the key of the row follows."""
        return f"{self.prefix}{self.view}:"

    @property
    def deletes(self) -> str:
        """Hash of recorded deletes: version by key."""
        return f"{self.prefix}_deleted:{self.view}"

    @property
    def floor(self) -> str:
        """Key of the version below which changes are refused."""
        return f"{self.prefix}_floor:{self.view}"

    @property
    def links(self) -> str:
        """Hash with each row's entries in lookups, counters and leaderboards, by row key."""
        return f"{self.prefix}_links:{self.view}"

    @property
    def form(self) -> str:
        """Key of the options with which its rows were written."""
        return f"{self.prefix}_form:{self.view}"

    @property
    def building(self) -> str:
        """Key that exists while the view may have missing or surplus rows."""
        return f"{self.prefix}_building:{self.view}"

    @property
    def current(self) -> str:
        """Hash of the physical names of views whose active version is not the first."""
        return f"{self.prefix}_current"

    def beside(self, kind: str) -> str:
        """Returns the key prefix of all `lookup`s, `counter`s or `leaderboard`s."""
        return f"{self.prefix}_{kind}:{self.view}:"


BESIDE: Final = ("lookup", "counter", "leaderboard")
"""Kinds of structures beside rows."""


class CacheServer:
    """A connection to the server and the script on it.

    Args:
        url: `redis://…` or `unix://…`.
        prefix: Namespace of the project.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self.prefix = prefix
        self.client: redis.Redis = redis.Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        )

    def keys(self, plan: ViewPlan) -> Keys:
        """Returns the names of a view's keys."""
        return Keys(self.prefix, plan.name)

    def run(self, plan: ViewPlan, operation: str, *arguments: bytes | str) -> Any:
        """Calls the script once; see `Calls`."""
        with self.calls(plan, operation) as calls:
            calls.send(*arguments)
            (answer,) = calls.answers()
        return answer

    @contextmanager
    def calls(self, plan: ViewPlan, operation: str) -> Iterator[Calls]:
        """Returns a pipeline of script calls."""
        keys, options = self.keys(plan), plan.cache
        fixed = (
            *("3", keys.deletes, keys.floor, keys.links, operation, keys.rows),
            *(*map(keys.beside, BESIDE), str(options.layout), str(options.ttl_ms)),
        )
        pool = self.client.connection_pool
        connection: Any = pool.get_connection()
        calls = Calls(connection, fixed)
        try:
            yield calls
        finally:
            if calls.under_way:  # a late response would be taken for the response to another call
                connection.disconnect()
            pool.release(connection)

    def scan(self, begin: str, count: int) -> Iterator[list[bytes]]:
        """Yields all keys with a prefix, in lists of bounded length."""
        return self._matching(f"{glob(begin)}*", count)

    def scan_beside(self, plan: ViewPlan, count: int) -> Iterator[list[bytes]]:
        """Yields the keys of all structures beside a view's rows, possibly with others."""
        return self._matching(f"{glob(self.prefix)}_*:{glob(plan.name)}:*", count)

    def close(self) -> None:
        """Closes the connections."""
        self.client.close()

    def _matching(self, pattern: str, count: int) -> Iterator[list[bytes]]:
        # a scan may return a key twice while the server rehashes
        keys = list(set(self.client.scan_iter(match=pattern, count=count)))
        for start in range(0, len(keys), count):
            yield keys[start : start + count]


class Calls:
    """Pipelined script calls: the server works while the next calls are built.

    A server that lacks the script, as after a restart, gets it again.

    Args:
        connection: Connection to the server, with no other user meanwhile.
        fixed: First arguments of every call.
    """

    def __init__(self, connection: Any, fixed: tuple[str, ...]) -> None:
        self._connection = connection
        self._fixed = fixed
        self._sent: deque[tuple[int, tuple[bytes | str, ...]]] = deque()
        self._under_way_bytes = 0
        self._answers: list[Any] = []

    @property
    def under_way(self) -> bool:
        """Returns whether responses are outstanding."""
        return bool(self._sent)

    def send(self, *arguments: bytes | str) -> None:
        """Sends a call; blocks while too many are in flight."""
        size = sum(map(len, arguments))
        while self._sent and self._under_way_bytes + size > UNDER_WAY_BYTES:
            self._take()
        self._send(size, arguments)

    def answers(self) -> list[Any]:
        """Waits for all responses; returns them in the order of the calls."""
        while self._sent:
            self._take()
        return self._answers

    def _send(self, size: int, arguments: tuple[bytes | str, ...]) -> None:
        packed = self._connection.pack_command("EVALSHA", _SHA, *self._fixed, *arguments)
        self._connection.send_packed_command(packed)
        self._sent.append((size, arguments))
        self._under_way_bytes += size

    def _take(self) -> None:
        try:
            answer = self._connection.read_response()
        except redis.exceptions.NoScriptError:
            self._load()
            return
        self._under_way_bytes -= self._sent.popleft()[0]
        self._answers.append(answer)

    def _load(self) -> None:
        """Loads the script, and repeats the calls that failed without it."""
        again = list(self._sent)
        for _ in again[1:]:
            with suppress(redis.exceptions.NoScriptError):
                self._connection.read_response()
        self._sent.clear()
        self._under_way_bytes = 0
        self._connection.send_command("SCRIPT", "LOAD", SCRIPT)
        self._connection.read_response()
        for size, arguments in again:
            self._send(size, arguments)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Converts the client's errors into those of sinks, without values."""
    try:
        yield
    except redis.exceptions.AuthenticationError as error:
        raise SinkRefusedError("the cache rejects the password", detail=_kind(error)) from None
    except redis.exceptions.OutOfMemoryError:
        raise CacheFullError(
            "the cache is full",
            detail="maxmemory is reached, and maxmemory-policy evicts no keys",
            hint="raise maxmemory, or remove a view from the cache; writes then continue",
        ) from None
    except redis.exceptions.ReadOnlyError:
        raise CacheReadOnlyError(
            "the cache is a replica, which accepts no writes",
            hint="set services.cache.address to the primary",
        ) from None
    except _PASSING as error:
        raise SinkUnavailableError("the cache cannot be written", detail=_kind(error)) from None
    except redis.RedisError as error:
        # the first word is the server's code, such as WRONGTYPE; the rest may contain a value
        answer = str(error).split(" ", 1)[0][:40]
        raise SinkRefusedError("the cache refuses a command", detail=answer) from None


def eviction_policy(url: str) -> str:
    """Returns the server's policy for full memory; empty if it does not report one.

    Raises:
        SinkError: It refuses, or does not answer.
    """
    server = CacheServer(url, "")
    try:
        with translated_errors():
            facts: Any = server.client.info("memory")
    finally:
        server.close()
    return str(facts.get("maxmemory_policy", ""))


def glob(text: str) -> str:
    """Escapes a text so that, as a pattern, it matches only itself."""
    return "".join("\\" + char if char in "*?[]\\^-" else char for char in text)


def _kind(error: Exception) -> str:
    return type(error).__name__
