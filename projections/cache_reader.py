"""Kept for what imports it from here: `projections.stores.valkey.reader`."""

from __future__ import annotations

from projections.stores.valkey.reader import CacheReader

__all__ = ["CacheReader"]
