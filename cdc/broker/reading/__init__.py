"""Reading records of a few topics; bulk data goes through Spark.

Purpose: look at what passes, or read a bounded part of a topic.
Entry points: `tail` (changes as they pass), `span` (records before some offsets), `arrival` and
`heartbeats` (how far a source has come).
Invariants: a read ends at an offset or at a time limit.
Tests: tests/unit/cdc, tests/integration/cdc.
"""
