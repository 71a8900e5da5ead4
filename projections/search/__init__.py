"""Kept for what imports from here: see `projections.stores.opensearch`."""
