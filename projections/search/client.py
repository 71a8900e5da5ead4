"""Kept for what imports it from here: `projections.stores.opensearch.searcher`."""

from __future__ import annotations

from projections.stores.opensearch.searcher import Searcher, conditions

__all__ = ["Searcher", "conditions"]
