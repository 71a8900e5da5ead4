"""Histories: every state that a row ever had, with the time for which it was valid and known.

Purpose: SCD type 2 with a second time axis; late changes are put between the states they fall
into.
Entry points: `sink.HistorySink`, `states` (the pure rules of which state ends when), `batch`,
`sweep` (what a snapshot no longer has), `check` (compare with the source), `tables` and `arrow`
(layout).
Invariants: states of a key do not overlap, and what was recorded is ended and never overwritten.
Any order and repetition of batches ends in the same states.
Tests: tests/unit/projections/stores, tests/integration/projections/stores.
"""
