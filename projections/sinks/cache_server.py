"""CacheServer: one Valkey or Redis as views use it: its keys, its script, its errors."""

from __future__ import annotations

from contextlib import contextmanager
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
    from collections.abc import Iterator, Sequence

    from projections.plan import ViewPlan

TIMEOUT_S: Final = 15.0
"""For one answer. The client tries three times more, so a server that hangs is told in a minute."""

SCRIPT: Final = Path(__file__).with_suffix(".lua").with_stem("cache").read_text("utf-8")

_PASSING: Final = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.NoScriptError,
    redis.exceptions.TryAgainError,
)


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of all that belongs to one view on a server.

    Attributes:
        prefix: Namespace of the project.
        view: The view.
    """

    prefix: str
    view: str

    @property
    def rows(self) -> str:
        """How a row's key begins; its own key follows."""
        return f"{self.prefix}{self.view}:"

    @property
    def deletes(self) -> str:
        """Hash of deletes: version by key."""
        return f"{self.prefix}_deleted:{self.view}"

    @property
    def floor(self) -> str:
        """The version below which nothing is taken any more."""
        return f"{self.prefix}_floor:{self.view}"

    @property
    def links(self) -> str:
        """Hash of the parts that rows have in lookups, counters and leaderboards, by key."""
        return f"{self.prefix}_links:{self.view}"

    @property
    def form(self) -> str:
        """The options under which its rows were written."""
        return f"{self.prefix}_form:{self.view}"

    @property
    def building(self) -> str:
        """There while the view may lack rows, or have rows too many."""
        return f"{self.prefix}_building:{self.view}"

    def beside(self, what: str) -> str:
        """How the keys of all `lookup`s, `counter`s or `leaderboard`s begin."""
        return f"{self.prefix}_{what}:{self.view}:"


BESIDE: Final = ("lookup", "counter", "leaderboard")
"""What can lie beside rows."""


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
        self._sha: str | None = None

    def keys(self, plan: ViewPlan) -> Keys:
        """Names of what belongs to a view."""
        return Keys(self.prefix, plan.name)

    def run(self, plan: ViewPlan, what: str, calls: Sequence[Sequence[bytes | str]]) -> list[Any]:
        """Calls the script, once for each list of arguments, sent without waiting in between.

        A server that has forgotten the script since, as after a restart, is given it again.
        """
        keys, options = self.keys(plan), plan.cache
        fixed = (
            *(keys.deletes, keys.floor, keys.links, what, keys.rows),
            *(*map(keys.beside, BESIDE), str(options.layout), str(options.ttl_ms)),
        )
        try:
            return self._run(fixed, calls)
        except redis.exceptions.NoScriptError:
            self._sha = None
            return self._run(fixed, calls)

    def _run(self, fixed: tuple[str, ...], calls: Sequence[Sequence[bytes | str]]) -> list[Any]:
        if self._sha is None:
            self._sha = str(self.client.script_load(SCRIPT))
        if len(calls) == 1:
            return [self.client.evalsha(self._sha, 3, *fixed, *calls[0])]
        with self.client.pipeline(transaction=False) as pipeline:
            for arguments in calls:
                pipeline.evalsha(self._sha, 3, *fixed, *arguments)
            answers: list[Any] = pipeline.execute()
        return answers

    def scan(self, begin: str, count: int) -> Iterator[list[bytes]]:
        """Yields all keys that begin so, in lists of a bounded length."""
        # a scan may show a key twice while the server rehashes
        found = list(set(self.client.scan_iter(match=f"{glob(begin)}*", count=count)))
        for start in range(0, len(found), count):
            yield found[start : start + count]

    def close(self) -> None:
        """Closes the connections."""
        self.client.close()


@contextmanager
def told_apart() -> Iterator[None]:
    """Turns the client's errors into those of sinks; never shows a value."""
    try:
        yield
    except redis.exceptions.AuthenticationError as error:
        raise SinkRefusedError("the cache refuses the password", detail=_kind(error)) from None
    except redis.exceptions.OutOfMemoryError:
        raise CacheFullError(
            "the cache is full",
            detail="maxmemory is reached, and maxmemory-policy lets nothing go",
            hint="raise maxmemory, or take a view out of the cache; writing goes on by itself",
        ) from None
    except redis.exceptions.ReadOnlyError:
        raise CacheReadOnlyError(
            "the cache is a replica, which takes no writes",
            hint="services.cache.address must be that of the primary",
        ) from None
    except _PASSING as error:
        raise SinkUnavailableError("the cache cannot be written", detail=_kind(error)) from None
    except redis.RedisError as error:
        # the first word is the server's code, such as WRONGTYPE; the rest may show a value
        answer = str(error).split(" ", 1)[0][:40]
        raise SinkRefusedError("the cache refuses a command", detail=answer) from None


def glob(text: str) -> str:
    """Returns a pattern that a text alone matches."""
    return "".join("\\" + char if char in "*?[]\\^-" else char for char in text)


def _kind(error: Exception) -> str:
    return type(error).__name__
