"""Spark sessions beside the job: derived views compared, replayed and checked in batch.

Purpose: commands that need Spark and no streaming query.
Entry points: `verify_derived` (each derived view beside its query), `compare_derived` (counts and
names of differing rows), `replay_derived` (a derived view as of an earlier boundary),
`check_dependents` (whether a new version of an input breaks a derived view).
Invariants: they read published versions and write nothing that the job writes.
Tests: tests/unit/projections/job, tests/integration/projections/job.
"""
