"""Operators of derived views as values: windows, measures, patterns, standing queries.

Purpose: the meaning of each operator, independent of the engine that executes it.
Entry points: `windows` (tumbling, hopping, sliding, sessions, calendar), `measures` (top,
percentile, approximate counts), `lateness`, `pattern` (sequences of rows), `standing_query`,
`time_bounds`.
Invariants: values only, without Spark or a store. `repr` of a pattern or percolation is part of a
view's stored text.
The matching of patterns is in `projections.incremental.patterns`, the execution in
`projections.incremental.spark`.
Tests: tests/unit/projections/definition, tests/integration/projections.
"""
