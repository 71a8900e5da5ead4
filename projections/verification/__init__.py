"""Every view compared with its source under writes, repaired and traced.

Purpose: compare each row of each store with the source, and repair those that differ.
Entry points: `verify.verify` (plain views), `background` (continuously, in a small share of the
time), `repair.repair`, `trace` (the progress of one row), `truth` and `source_rows` (the source's
rows), `key_filter` (the keys to check), `column_pass` (the same by column, for mirrors in the
warehouse alone), `job_pass` (the same by tasks of the running job), `recheck` (only a lasting
difference counts), `report` and `results_table`.
Invariants: a difference is reported only if both sides were read at known positions and it
persists. A repair writes to no store past the job. `projections.job.batch.verify_derived`, which is
injected, compares derived views.
Tests: tests/unit/projections/verification, tests/integration/projections/verification.
"""
