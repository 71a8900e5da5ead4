"""The archive: raw changes kept for good in Delta, and replay from them.

Purpose: a view can be filled, or read as it was, without Kafka's retention and without the
source.
Entry points: `table.Archive` (append, compaction, retention), `replay.replay` (fill views),
`rebuilding` (its tasks), `as_of` (rows as they were), `coverage` and `completeness` (what it has,
and refusal of gaps), `progress`.
Invariants: every record is archived exactly once, by topic, partition and offset. A gap is
refused with a code that names it. Replaying in any order and any number of times ends in the same
state.
Tests: tests/unit/projections/archive, tests/integration/projections/archive.
"""
