"""Rebuilding with Spark: mirrors from the newest record of each key, other views from all records.

Purpose: do the expensive part of a replay on every core that the job has.
Entry points: `SparkEngine`, the bulk engine of replays (`projections.archive.bulk`).
Invariants: a table that is filled has no rows before, and a part is committed to it once; writes to
other stores are guarded by versions, and no task writes once its fence is closed. Every record that
a task cannot write directly goes back to the replay, which delivers it as the job would.
Tests: tests/integration/projections/job.
"""
