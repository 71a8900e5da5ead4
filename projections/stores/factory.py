"""Opens the sink of a store; loads only the client that the store needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.definition.views import Store

if TYPE_CHECKING:
    from projections.changes.sink import Sink
    from projections.planning.job_config import StoreAddresses


def open_sink(store: Store, addresses: StoreAddresses) -> Sink:
    """Returns a new sink; the first use connects."""
    if store is Store.CACHE:
        from projections.stores.valkey.sink import CacheSink  # noqa: PLC0415

        return CacheSink(addresses.cache_url, addresses.cache_prefix)
    if store is Store.SEARCH:
        from projections.stores.opensearch.sink import SearchSink  # noqa: PLC0415

        return SearchSink(addresses.search_url)
    from projections.stores.delta.sink import WarehouseSink  # noqa: PLC0415

    return WarehouseSink(addresses.tables)
