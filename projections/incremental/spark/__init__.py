"""Derived views in Spark: the query's plan, the keys that a change affects, their new rows.

Purpose: execute the strategy that `projections.incremental.analysis` chose.
Entry points: `maintainer` (keeps all derived views of a job), `sql_query` (a view's query),
`analysis` (asks Spark for the plan and chooses the strategy), `affected_keys`, `recompute_keys`,
`pruned_inputs` and `recompute_suffix` (read less), `full_diff` (a complete result against the
stored rows), `pattern_matching`, `percolator`, `catalyst` and `contradictions` (Spark's
expressions). Invariants: together with `projections.job` the only place that imports pyspark. Rows
that do not
change are not written.
Tests: tests/unit/projections/incremental, tests/integration/projections/incremental.
"""
