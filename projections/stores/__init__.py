"""Stores: one folder for each engine, with the same file names, for reading and writing.

Purpose: `delta` (the warehouse), `opensearch` (search) and `valkey` (cache) implement the port
`projections.changes.sink.Sink`.
Entry points: `factory.open_sink`, `identity` (detects a store that was replaced), `capacity`.
Invariants: the engines do not import each other. Each guards every key by the version that it
stores with it, and records deletes.
A new store: a member of `definition.views.Store`, a folder here, a line in `factory`, a subclass
of `tests.oracles.sink_contract.SinkContract`.
Tests: tests/unit/projections/stores, tests/integration/projections/stores.
"""

from __future__ import annotations

from projections.changes.sink import Sink

__all__ = ["Sink"]
