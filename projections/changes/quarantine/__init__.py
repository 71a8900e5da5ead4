"""Quarantine: records that could not be read or applied, in the source's schema `headwater`.

Purpose: a record waits under its key, for one view in one store, and later changes of that key wait
behind it. It has all data for a retry. Entry points: `table` (its rows), `admin` (list, retry,
drop), `write_guard` (writes of the job), `retry` and `rereads` (what the job retries, and rows that
it reads from the source). Invariants: rows are written before the batch counts as done, so a record
is in its store, has something newer there, or waits.

| state | |
|---|---|
| `waiting` | until `retry` or `drop`; what lacks a value, until the row arrives |
| `retry` | the job tries it as soon as it sees it |
| `dropped` | given up; stays so if the record comes again, and its content is erased |
| `superseded` | it could not be read, and a later change of the key has taken its place |

Tests: tests/unit/projections/changes, tests/integration/projections/changes.
"""
