"""What changes something on request: versions of views, erasure, events.

Purpose: the commands behind `headwater view rebuild`, `view forget`, `events shred` and their
like.
Entry points: `versions` (rebuild, cutover, rollback, drop), `erase_rows` (a key forgotten in
views), `erase_person` (a person's key destroyed in the event store), `events` (compaction,
upcasting).
Invariants: a destructive step is asked for by the caller (`--yes`), and each may be repeated
after a crash. Does not import `headwater.reading`.
Tests: tests/unit/headwater, tests/integration/headwater/operations.
"""
