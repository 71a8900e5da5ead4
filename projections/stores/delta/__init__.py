"""The warehouse: Delta tables of views, written without a JVM and read by any engine.

Purpose: small batches are merged by `deltalake`; bulk loads add files.
Entry points: `sink.WarehouseSink` (all views), `table_sink.TableSink` (latest rows; reads them by
`view_tables`), `history` (every state of a row), `derived_table` (rows of a derived view),
`source_copy` (rows of a source table, decoded by `copy_format`), `schema_migration`, `table_stats`,
`table_diff` (two versions compared, with `suspect_keys` and `row_hashes`).
Invariants: one writer at a time, under a lock of the table. A remembered delete is in a table
beside it, `<view>.deleted`. Properties `headwater.*` of a table are data: names stay.
Tests: tests/unit/projections/stores, tests/integration/projections/stores.
"""
