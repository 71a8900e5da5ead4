"""What is done to a log as it grows old: audit, compaction, retention, a check of upcasters.

Purpose: values and rules; `eventstore.postgres` executes them.
Entry points: `audit` (a hash chain, compared with a head kept elsewhere), `compaction` (a
stream's first events folded into one `$snapshot`), `retention` (what may be archived, dropped or
forgotten), `upcast_check` (whether this program reads the whole log).
Invariants: a stream's version is never given twice. What is dropped was archived and sealed
before, and a record says what it was.
Tests: tests/unit/eventstore, tests/integration/eventstore.
"""
