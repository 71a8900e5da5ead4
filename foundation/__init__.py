"""The base of every package: errors, files, locks, migrations, retries, waiting and names.

Purpose: the mechanisms that `cdc`, `eventstore`, `projections` and `headwater` share, each once.
Entry points: `foundation.errors`, `foundation.atomic_file`, `foundation.file_lock`,
`foundation.advisory_lock`, `foundation.migration`, `foundation.retry`, `foundation.waiting`,
`foundation.suggestion`.
Invariants: it imports the standard library only, and none of the packages above it.
Tests: tests/unit/foundation.
"""
