"""Every view compared with its source under writes, repaired and traced.

Purpose: say of each row of each store whether it is what the source says, and cure what is not.
Entry points: `verify.verify` (plain views), `background` (a small share of the time, for good),
`repair.repair`, `trace` (where one row is on its way), `truth` and `source_rows` (what the source
says), `recheck` (a difference counts when it stays), `report` and `results_table`.
Invariants: a difference is reported only if both sides were read at known positions and it is
still there. A repair writes to no store past the job. Derived views are compared by
`projections.job.batch.verify_derived`, which is handed in.
Tests: tests/unit/projections/verification, tests/integration/projections/verification.
"""
