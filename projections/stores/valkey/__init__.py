"""The cache: rows under their keys in Valkey or Redis, with lookups, counters and leaderboards.

Purpose: one script, `write.lua`, compares versions and writes a row with its indexes in one step.
Entry points: `sink.CacheSink`, `reader.CacheReader` (reading), `row` (a row as it is stored),
`epoch` (a server that lost its data is noticed), `index_check` and `index_scan` (indexes compared
with rows), `client`.
Invariants: the names of keys and of their fields are data. A server that evicts or was emptied is
filled again before its views claim a position.
Tests: tests/unit/projections/stores, tests/integration/projections/stores.
"""
