"""What every package stands on: errors, files, locks, waiting and names.

Purpose: the mechanisms that `cdc`, `eventstore`, `projections` and `headwater` share, each once.
Entry points: `foundation.errors`, `foundation.atomic_file`, `foundation.file_lock`,
`foundation.advisory_lock`, `foundation.waiting`, `foundation.suggestion`.
Invariants: it imports the standard library only, and none of the packages above it.
Tests: tests/unit/foundation.
"""
