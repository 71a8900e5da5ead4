"""Opens the sink of a store; loads only the client that the store needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.view import Store

if TYPE_CHECKING:
    from projections.sinks.sink import Sink
    from projections.spec import StoreAddresses


def open_sink(store: Store, addresses: StoreAddresses) -> Sink:
    """Returns a new sink; the first use connects."""
    if store is Store.CACHE:
        from projections.sinks.cache import CacheSink  # noqa: PLC0415

        return CacheSink(addresses.cache_url, addresses.cache_prefix)
    if store is Store.SEARCH:
        from projections.sinks.search import SearchSink  # noqa: PLC0415

        return SearchSink(addresses.search_url)
    from projections.sinks.warehouse import WarehouseSink  # noqa: PLC0415

    return WarehouseSink(addresses.tables)
