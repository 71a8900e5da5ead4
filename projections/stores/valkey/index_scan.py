"""Reads the structures beside a view's rows in the cache, in short steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import redis

from projections.definition.cache_options import CacheLayout
from projections.definition.columns import VERSION_COLUMN
from projections.stores.valkey.client import CacheServer, translated_errors
from projections.stores.valkey.index_check import WORDS, CachedIndex
from projections.stores.valkey.row import COUNTER, DIGITS, LEADERBOARD, LOOKUP, PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from projections.planning.view_plan import ViewPlan
    from projections.stores.valkey.index_check import Suspect

ENTRIES_AT_ONCE: Final = 1000
"""Keys read in one step; most have few members."""

MEMBERS_AT_ONCE: Final = 1000
"""Approximate number of members of a large structure in one response."""


_LOOKS_AT_ONCE: Final = 200
_TYPES: Final = {LOOKUP: b"set", COUNTER: b"hash", LEADERBOARD: b"zset"}


def entries(url: str, prefix: str, plan: ViewPlan) -> Iterator[CachedIndex]:
    """Reads all lookups, counters and leaderboards of a view, including undeclared ones.

    Args:
        url: `redis://…` or `unix://…`.
        prefix: Namespace of the project.
        plan: The view.

    Yields:
        Each entry once; its members must be read before the next entry is requested.

    Raises:
        SinkError: The server refuses or does not answer.
    """
    server = CacheServer(url, prefix)
    begins = {kind: server.keys(plan).beside(word).encode() for kind, word in WORDS.items()}
    try:
        with translated_errors():
            for keys in server.scan_beside(plan, ENTRIES_AT_ONCE):
                named = [
                    (kind, key, _text(key[len(begin) :]))
                    for key in keys
                    for kind, begin in begins.items()
                    if key.startswith(begin)
                ]
                yield from _read(server.client, named)
    finally:
        server.close()


class Memberships:
    """Reads the row version and the entries of suspected rows.

    Args:
        url: `redis://…` or `unix://…`.
        prefix: Namespace of the project.
        plan: The view.
    """

    def __init__(self, url: str, prefix: str, plan: ViewPlan) -> None:
        self._server = CacheServer(url, prefix)
        self._plan = plan
        self._keys = self._server.keys(plan)

    def look(self, suspects: Sequence[Suspect]) -> list[tuple[bytes, float | None]]:
        """Returns for each suspect the row's version, and its score; None if it has no entry.

        Row and entries are from one moment, since they are written together.

        Raises:
            SinkError: The server refuses or does not answer.
        """
        results: list[tuple[bytes, float | None]] = []
        with translated_errors():
            for start in range(0, len(suspects), _LOOKS_AT_ONCE):
                part = suspects[start : start + _LOOKS_AT_ONCE]
                with self._server.client.pipeline(transaction=True) as pipeline:
                    for each in part:
                        self._ask(pipeline, each)
                    answers = pipeline.execute(raise_on_error=False)
                results += [
                    self._answer(*answers[place : place + 3]) for place in range(0, len(answers), 3)
                ]
        return results

    def counts(self, name: str) -> WatchedCounter:
        """Watches a counter for changes."""
        return WatchedCounter(self._server.client, self._keys.beside(WORDS[COUNTER]) + name)

    def foreign(self, suspect: Suspect) -> bool:
        """Returns whether the key of a structure has another type."""
        key = self._keys.beside(WORDS[suspect.kind]) + suspect.name
        with translated_errors():
            key_type: Any = self._server.client.type(key)
        return key_type not in {b"none", _TYPES[suspect.kind]}

    def close(self) -> None:
        """Closes the connections."""
        self._server.close()

    def _ask(self, pipeline: Any, suspect: Suspect) -> None:
        row = self._keys.rows + suspect.key
        if self._plan.cache.layout == CacheLayout.DOCUMENT:
            pipeline.getrange(row, len(PREFIX), len(PREFIX) + DIGITS - 1)
        else:
            pipeline.hget(row, VERSION_COLUMN)
        pipeline.hget(self._keys.deletes, suspect.key)
        place = self._keys.beside(WORDS[suspect.kind]) + suspect.name
        if suspect.kind == LOOKUP:
            pipeline.sismember(place, suspect.key)
        else:
            pipeline.zscore(place, suspect.key)

    @staticmethod
    def _answer(version: Any, deleted: Any, there: Any) -> tuple[bytes, float | None]:
        known = next((each for each in (version, deleted) if isinstance(each, bytes) and each), b"")
        if isinstance(there, float):
            return known, there
        member = there and not isinstance(there, Exception)  # a lookup only answers yes or no
        return known, 0.0 if member else None


class WatchedCounter:
    """A watched counter: it detects every concurrent change, even one back to the same value."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._key = key
        self._pipeline = client.pipeline(transaction=True)
        with translated_errors():
            self._pipeline.watch(key)  # type: ignore[no-untyped-call]

    def unchanged(self) -> tuple[str | None, str | None] | None:
        """Ends the watch; returns the counter, or None if it has changed."""
        with translated_errors():
            try:
                self._pipeline.multi()
                self._pipeline.hmget(self._key, ["rows", "sum"])
                ((rows, total),) = self._pipeline.execute()
            except redis.WatchError:
                return None
            finally:
                self._pipeline.reset()
        return None if rows is None else _text(rows), None if total is None else _text(total)


def _read(client: redis.Redis, named: Sequence[tuple[str, bytes, str]]) -> Iterator[CachedIndex]:
    with client.pipeline(transaction=False) as pipeline:
        for kind, key, _ in named:
            if kind == COUNTER:
                pipeline.hmget(key, ["rows", "sum"])
            else:
                _step(pipeline, kind, key, 0)
        answers = pipeline.execute(raise_on_error=False)
    for (kind, key, name), answer in zip(named, answers, strict=True):
        if isinstance(answer, redis.ResponseError) and str(answer).startswith("WRONGTYPE"):
            yield CachedIndex(kind, name, foreign=True)
        elif isinstance(answer, Exception):
            raise answer
        elif kind == COUNTER:
            rows, total = (None if count is None else _text(count) for count in answer)
            yield CachedIndex(kind, name, counts=(rows, total))
        else:
            yield CachedIndex(kind, name, _members(client, kind, key, answer))


def _members(
    client: redis.Redis, kind: str, key: bytes, answer: Any
) -> Iterator[tuple[str, float]]:
    with translated_errors():  # members are read after the block that yielded the entry
        while True:
            cursor, members = answer
            for member in members:
                text, score = (member, 0.0) if kind == LOOKUP else member
                yield _text(text), score
            if cursor == 0:
                return
            answer = _step(client, kind, key, cursor)


def _step(client: redis.Redis, kind: str, key: bytes, cursor: int) -> Any:
    scan = client.sscan if kind == LOOKUP else client.zscan
    return scan(key, cursor, count=MEMBERS_AT_ONCE)


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")  # another program may have written anything here
