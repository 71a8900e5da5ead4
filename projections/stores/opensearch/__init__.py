"""Search: one index for each view, and the client that searches it.

Purpose: rows become documents, guarded by external versions; deletes leave a marker for a while.
Entry points: `sink.SearchSink`, `searcher.Searcher` with `query.SearchQuery` (reading), `mapping`
(fields of an index), `reindex` (another mapping in place), `client` (the engine's requests).
Invariants: the engine's own version check decides each write. An index that was deleted or
replaced is noticed by its identity and filled again. Keys below `_meta` are data: names stay.
Tests: tests/unit/projections/stores, tests/integration/projections/stores.
"""
