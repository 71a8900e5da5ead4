"""What lies beside the rows of a view in the cache, read in steps that hold up nobody for long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import redis

from projections.cache_beside import WORDS, Entry
from projections.cache_row import COUNTER, LOOKUP
from projections.sinks.cache_server import CacheServer, told_apart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from projections.plan import ViewPlan

ENTRIES_AT_ONCE: Final = 1000
"""Asked for in one go; most have a few members."""

MEMBERS_AT_ONCE: Final = 1000
"""About how many members of a large one an answer has."""


def entries(url: str, prefix: str, plan: ViewPlan) -> Iterator[Entry]:
    """Reads all lookups, counters and leaderboards of a view, also those that nobody declared.

    Args:
        url: `redis://…` or `unix://…`.
        prefix: Namespace of the project.
        plan: The view.

    Yields:
        Each once; its members are to be read before the next is asked for.

    Raises:
        SinkError: The server refuses or does not answer.
    """
    server = CacheServer(url, prefix)
    begins = {kind: server.keys(plan).beside(word).encode() for kind, word in WORDS.items()}
    try:
        with told_apart():
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


def _read(client: redis.Redis, named: Sequence[tuple[str, bytes, str]]) -> Iterator[Entry]:
    with client.pipeline(transaction=False) as pipeline:
        for kind, key, _ in named:
            if kind == COUNTER:
                pipeline.hmget(key, ["rows", "sum"])
            else:
                _step(pipeline, kind, key, 0)
        answers = pipeline.execute(raise_on_error=False)
    for (kind, key, name), answer in zip(named, answers, strict=True):
        if isinstance(answer, redis.ResponseError) and str(answer).startswith("WRONGTYPE"):
            yield Entry(kind, name, foreign=True)
        elif isinstance(answer, Exception):
            raise answer
        elif kind == COUNTER:
            rows, total = (None if count is None else _text(count) for count in answer)
            yield Entry(kind, name, counts=(rows, total))
        else:
            yield Entry(kind, name, _members(client, kind, key, answer))


def _members(
    client: redis.Redis, kind: str, key: bytes, answer: Any
) -> Iterator[tuple[str, float]]:
    with told_apart():  # read outside of the block that yielded the entry
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
    return raw.decode(errors="backslashreplace")  # somebody else may have put anything here
