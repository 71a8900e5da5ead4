"""Rebuilding by tasks: mirrors from the newest record of each key, other views from all records.

Purpose: do the expensive part of a replay in tasks. The job runs them in Spark's executors, on all
its cores; a command runs them in its own process, one after the other.
Entry points: `TaskEngine`, the engine of replays (`projections.archive.bulk`), and `OwnTasks`.
Invariants: a table that is filled has no rows before, and a part is committed to it once; writes to
other stores are guarded by versions, and no task writes once its fence is closed. Every record that
a task cannot write directly goes back to the replay, which delivers it as the job would.
Tests: tests/unit/projections/archive, tests/integration/projections/archive.
"""
