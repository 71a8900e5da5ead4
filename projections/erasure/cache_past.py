"""What a cache keeps on disk of entries that are gone: until it writes its files anew."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import redis

from projections.errors import SinkUnavailableError
from projections.stores.valkey.client import told_apart

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S: Final = 0.1
_UNDER_WAY: Final = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")


def write_anew(url: str, deadline_s: float) -> bool:
    """Has a cache write its files anew, and waits for it.

    Args:
        url: `redis://…`.
        deadline_s: Longest wait, seconds.

    Returns:
        Whether it did; False if the server does not let us.

    Raises:
        SinkUnavailableError: It does not answer, or is not done in time.
    """
    client = redis.Redis.from_url(url)
    try:
        with told_apart():
            found: Any = client.info("persistence")
            _await(client, deadline_s)  # one that is under way may have begun before
            if found.get("aof_enabled"):
                _asked(client, client.bgrewriteaof, deadline_s)
            if found.get("rdb_last_save_time") and found.get("rdb_saves", 1):
                _asked(client, client.bgsave, deadline_s)
    except redis.ResponseError:
        return False
    finally:
        client.close()
    return True


def _asked(client: redis.Redis, ask: Callable[[], object], deadline_s: float) -> None:
    ask()
    _await(client, deadline_s)


def _await(client: redis.Redis, deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while True:
        said: Any = client.info("persistence")
        if not any(said.get(name) for name in _UNDER_WAY):
            return
        if time.monotonic() > deadline:
            raise SinkUnavailableError(
                "the cache has not written its files in time", detail=f"after {deadline_s:.0f} s"
            )
        time.sleep(_POLL_S)
