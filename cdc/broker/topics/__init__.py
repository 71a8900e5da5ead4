"""Topics: their creation, properties, sizes and offsets.

Purpose: create and describe topics without reading their records.
Entry points: `topics` (creation, properties, ids), `offsets` (ends), `extent` (offsets, bytes and
times), `incarnation` (ids with ends), `truncation` (deletes the records before an offset).
Invariants: a topic is created before it is written to. A recreated topic is detected by its id. A
compacted topic is never truncated.
Tests: tests/unit/cdc, tests/integration/cdc.
"""
