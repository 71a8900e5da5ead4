"""CacheEpoch: detects that the cache has lost data.

The cache stores an id and a heartbeat, which increases before and after every batch; the job
records both in a file beside its checkpoint. A server applies writes in order. If it has the id and
a heartbeat at least as high as the job's, it has every earlier write; otherwise it was emptied,
restored, or restarted without the end of its log.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import orjson
import structlog

from foundation.atomic_file import write_atomically
from projections.errors import CacheLostError
from projections.stores.valkey.client import CacheServer, translated_errors

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from projections.planning.view_plan import ViewPlan

EVICTED_AGAIN_S: Final = 600.0
"""Shortest time between snapshots for a server that evicts keys and so loses data continually."""

_BEAT: Final = """
local id, beat = unpack(redis.call('HMGET', KEYS[1], 'id', 'beat'))
if id ~= ARGV[1] or not beat or tonumber(beat) < tonumber(ARGV[2]) - 1 then return 0 end
redis.call('HSET', KEYS[1], 'beat', ARGV[2])
return 1
"""
_log = structlog.get_logger(__name__)


class _Memory(msgspec.Struct):
    """What the job recorded of the cache.

    Attributes:
        id: The cache's id since its views were last started.
        beat: The last heartbeat written to it.
        run: The server process.
        evicted: Number of keys that it had evicted.
        rebuilt_at: Time of the last snapshot of its views, seconds since 1970.
    """

    id: str
    beat: int
    run: str = ""
    evicted: int = 0
    rebuilt_at: float = 0.0


_MEMORIES: Final = msgspec.json.Decoder(_Memory)


class _Facts(NamedTuple):
    """What the server reports."""

    run: str
    evicted: int
    policy: str


class CacheEpoch:
    """Checks one job's cache; used by one thread at a time, except `lost`.

    Args:
        url: The server.
        prefix: Namespace of the project.
        file: File that records it.
        name: Distinguishes several jobs that write to one cache.
    """

    def __init__(self, url: str, prefix: str, file: Path, name: str = "_epoch") -> None:
        self.lost = threading.Event()
        self._server = CacheServer(url, prefix)
        self._client: Any = self._server.client
        self._key = f"{prefix}{name}"
        self._file = file
        self._memory = self._read()
        self._warned = False

    @property
    def id(self) -> str:
        """Returns the present id of the cache; empty before `look`."""
        return "" if self._memory is None else self._memory.id

    def look(self) -> str | None:
        """Returns what has happened to the cache, and sets `lost`; None if nothing is lost.

        Raises:
            SinkError: It does not answer.
        """
        with translated_errors():
            raw_id, raw_beat = self._client.hmget(self._key, ["id", "beat"])
            facts = self._facts()
        cache_id, beat = (raw_id or b"").decode(), int(raw_beat or 0)
        memory = self._memory
        if memory is None:  # a new or older home folder: the cache counts
            self._begin(cache_id or secrets.token_hex(8), max(beat, 1), facts)
            return None
        reason = _lost(memory, cache_id, beat) or self._evicted(memory, facts)
        if reason is not None:
            self.lost.set()
        elif (memory.run, memory.evicted) != (facts.run, facts.evicted):
            memory.run, memory.evicted = facts.run, facts.evicted
            self._write(memory)
        return reason

    def beat(self) -> None:
        """Records on both sides that a batch begins or has ended.

        Raises:
            CacheLostError: The cache has lost writes.
            SinkError: It does not answer.
        """
        if self._memory is None:
            self.look()
        memory = self._memory
        if memory is None or self.lost.is_set():
            raise _lost_error("it is being restored")
        with translated_errors():
            known = self._client.eval(_BEAT, 1, self._key, memory.id, memory.beat + 1)
        if not known:
            raise _lost_error(self.look() or "")
        memory.beat += 1
        self._write(memory)

    def renew(self, plans: Iterable[ViewPlan]) -> None:
        """Gives the cache a new id, and marks its views as incomplete.

        Raises:
            SinkError: It does not answer.
        """
        self.mark(plans)
        with translated_errors():
            facts = self._facts()
        self._begin(secrets.token_hex(8), 1, facts, time.time())
        self.lost.clear()

    def mark(self, plans: Iterable[ViewPlan]) -> None:
        """Marks views as incomplete: rows may be missing or surplus.

        Raises:
            SinkError: The cache does not answer.
        """
        with translated_errors():
            for plan in plans:
                self._client.set(self._server.keys(plan).building, "rebuilt")

    def built(self, plan: ViewPlan) -> None:
        """Marks a view as complete.

        Raises:
            SinkError: The cache does not answer.
        """
        with translated_errors():
            self._client.delete(self._server.keys(plan).building)

    def reformed(self, plans: Iterable[ViewPlan]) -> list[ViewPlan]:
        """Returns the views whose rows were written with other options.

        Raises:
            SinkError: The cache does not answer.
        """
        reformed = []
        with translated_errors():
            for plan in plans:
                text = self._client.get(self._server.keys(plan).form)
                if text is not None and orjson.loads(text)["options"] != plan.cache.form:
                    reformed.append(plan)
        return reformed

    def close(self) -> None:
        """Closes the connections."""
        self._server.close()

    def _facts(self) -> _Facts:
        info = self._client.info()
        policy = str(info.get("maxmemory_policy", ""))
        return _Facts(str(info.get("run_id", "")), int(info.get("evicted_keys", 0)), policy)

    def _begin(self, name: str, beat: int, facts: _Facts, now: float = 0.0) -> None:
        with translated_errors():
            self._client.hset(self._key, mapping={"id": name, "beat": beat})
        self._memory = _Memory(name, beat, facts.run, facts.evicted, now)
        self._write(self._memory)

    def _evicted(self, memory: _Memory, facts: _Facts) -> str | None:
        if not facts.policy.startswith("allkeys"):
            return None  # expiring rows may be evicted: their versions are separate
        if not self._warned:
            self._warned = True
            _log.warning("the cache may evict rows", policy=facts.policy)
        before = memory.evicted if memory.run == facts.run else 0
        gone = facts.evicted - before
        if gone <= 0 or time.time() < memory.rebuilt_at + EVICTED_AGAIN_S:
            return None
        return f"{gone:,} keys were evicted, policy {facts.policy}"

    def _read(self) -> _Memory | None:
        if not self._file.is_file():
            return None
        try:
            return _MEMORIES.decode(self._file.read_bytes())
        except msgspec.DecodeError:  # damaged by a power cut: nothing in it is reliable
            return _Memory("", 0)

    def _write(self, memory: _Memory) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, msgspec.json.encode(memory))


def _lost(memory: _Memory, cache_id: str, beat: int) -> str | None:
    if not cache_id:
        return "it is empty"
    if cache_id != memory.id:
        return "it has another id"
    if beat < memory.beat:
        return f"it is {memory.beat - beat} beats behind"
    return None


def _lost_error(detail: str) -> CacheLostError:
    return CacheLostError(
        "the cache has lost writes",
        detail=detail,
        hint=("its views are filled again automatically; headwater view status shows the progress"),
    )
