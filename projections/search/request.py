"""Kept for what imports it from here: `projections.stores.opensearch.query`."""

from __future__ import annotations

from projections.stores.opensearch.query import SearchQuery

__all__ = ["SearchQuery"]
