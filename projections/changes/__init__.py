"""Turns records of topics into changes that stores apply, or quarantines them.

Purpose: decode records, keep the newest change of each key in a batch, and write it.
Entry points: `record.Record`, `row_change.RowChange`, `reducer.TopicReducer` (`history_reducer`
for histories), `applier.TaskApplier` (a task's records into one sink), `view_delivery` (one
view's part of it) and `task_outcome`, `sink.Sink` (the port that every store implements),
`documents` and `row_batch` (rows in the form that stores accept), `sweeps`.
Invariants: a write applies only if its version is greater than the stored one of its key, deletes
included; so duplicates, order and replays end in the same state. A record is applied, superseded
or quarantined, and never lost silently.
Tests: tests/unit/projections/changes, tests/integration/projections/changes.
"""
