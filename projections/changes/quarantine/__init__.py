"""Quarantine: records that could not be read or applied, in the source's schema `headwater`.

Purpose: a record waits under its key, for one view in one store, and later changes of that key wait
behind it. It has all data for a retry.
Entry points: `table` (its rows), `admin` (list, retry, drop), `write_guard` (writes of the job),
`retry` (retries by the job), `rereads` (rows that the job reads from the source again).
Invariants: rows are written before the batch counts as done, so every record is applied, superseded
by a newer version in its store, or quarantined.

| state | |
|---|---|
| `waiting` | until `retry` or `drop`; if it lacks a value, until the row arrives |
| `retry` | the job retries it as soon as it sees this state |
| `dropped` | discarded with its content; it stays so if the record is delivered again |
| `superseded` | unreadable, and a later change of the key has replaced it |

Tests: tests/unit/projections/changes, tests/integration/projections/changes.
"""
