"""Reading records of a few topics; bulk data goes through Spark.

Purpose: follow arriving changes, or read a bounded part of a topic.
Entry points: `tail` (changes as they arrive), `span` (records before given offsets), `arrival` and
`heartbeats` (the newest position of a source).
Invariants: a read ends at an offset or at a time limit.
Tests: tests/unit/cdc, tests/integration/cdc.
"""
