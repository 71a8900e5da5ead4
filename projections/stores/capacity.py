"""Capacity: how much of a store a version of a view uses, and how much is free for another one."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from projections.definition.views import Store
from projections.errors import SinkError
from projections.stores.opensearch.client import SearchEngine
from projections.stores.opensearch.sink import index_of
from projections.stores.valkey.client import CacheServer, Keys, glob, translated_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from projections.planning.job_config import StoreAddresses

_KEYS_AT_ONCE: Final = 2000
_LOOKED_AT_MAX: Final = 400_000
"""Size of the sample of a cache's keys: far fewer estimate a share of its rows to a percent."""
_SAMPLED_AT_ONCE: Final = 20
"""Rows of each part of the keys that are measured: each measurement costs as much as a read."""


class StoreCapacity(NamedTuple):
    """Used and free capacity of a store.

    Attributes:
        taken_bytes: Estimated size of the existing version.
        free_bytes: Free capacity; None if the store has no limit or an unknown one.
    """

    taken_bytes: int
    free_bytes: int | None = None


def store_capacities(
    addresses: StoreAddresses, physical_name: str, stores: Iterable[Store]
) -> dict[str, StoreCapacity]:
    """Estimates how much of each store other than the tables a version uses.

    A store that does not answer, or lacks the version, is left out: a rebuild reports that itself.

    Args:
        addresses: Addresses of the stores.
        physical_name: That of the version.
        stores: The stores to ask.
    """
    capacities = {}
    for store in sorted(stores):
        with suppress(SinkError):
            if store is Store.CACHE:
                capacities[str(store)] = cache_capacity(
                    addresses.cache_url, addresses.cache_prefix, physical_name
                )
            elif store is Store.SEARCH:
                capacities[str(store)] = search_capacity(addresses.search_url, physical_name)
    return {store: capacity for store, capacity in capacities.items() if capacity is not None}


def cache_capacity(url: str, prefix: str, physical_name: str) -> StoreCapacity | None:
    """Estimates the cache memory of a version's rows from a sample.

    It excludes lookups, counters, leaderboards and recorded deletes, so it is a lower bound.

    Args:
        url: The server's URL.
        prefix: Namespace of the project.
        physical_name: That of the version.

    Returns:
        The capacity; None if the sample has no row of the version.

    Raises:
        SinkError: The cache refuses, or does not answer.
    """
    pattern = f"{glob(Keys(prefix, physical_name).rows)}*"
    cursor = looked_at = matched = sampled = sampled_bytes = 0
    with closing(CacheServer(url, prefix)) as server, translated_errors():
        client: Any = server.client
        while True:  # keys come in the order of a hash, so the first ones are a random sample
            cursor, keys = client.scan(cursor, match=pattern, count=_KEYS_AT_ONCE)
            looked_at, matched = looked_at + _KEYS_AT_ONCE, matched + len(keys)
            pipeline = client.pipeline(transaction=False)
            for key in keys[:_SAMPLED_AT_ONCE]:
                pipeline.memory_usage(key)
            sizes = [size for size in pipeline.execute() if size]  # keys may have expired
            sampled, sampled_bytes = sampled + len(sizes), sampled_bytes + sum(sizes)
            if not cursor or looked_at >= _LOOKED_AT_MAX:
                break
        every, facts = client.dbsize(), client.info("memory")
    if not sampled:
        return None
    rows = matched * max(1.0, every / looked_at) if cursor else matched
    limit, used = int(facts.get("maxmemory", 0)), int(facts["used_memory"])
    uncounted = int(facts.get("mem_not_counted_for_evict", 0))
    free = max(0, limit - used + uncounted) if limit else None
    return StoreCapacity(round(rows * sampled_bytes / sampled), free)


def search_capacity(url: str, physical_name: str) -> StoreCapacity | None:
    """Returns the disk space of a version in search, including replicas.

    Args:
        url: The engine's URL.
        physical_name: That of the version.

    Returns:
        The capacity; None if the version has no index.

    Raises:
        SinkError: The engine refuses, or does not answer.
    """
    with closing(SearchEngine(url)) as engine:
        path = f"/{index_of(physical_name)}/_stats/store?ignore_unavailable=true"
        stats = engine.request("GET", path)["indices"]
    sizes = [int(each["total"]["store"]["size_in_bytes"]) for each in stats.values()]
    return StoreCapacity(sum(sizes)) if sizes else None
