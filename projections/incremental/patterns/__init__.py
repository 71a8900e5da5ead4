"""Patterns: matches of steps in sequences of rows, searched again from the rows that changed.

Purpose: the matching itself, without Spark: given the rows of a group in order, its matches.
Entry points: `search` (matches of one group), `index` (which rows can begin or continue one),
`batch` (many groups at once), `any_order` (steps without an order).
Invariants: values only. The matches of a group depend on its rows and on nothing else, so
searching again gives the same ones. A walked oracle in the tests finds the same matches.
The declared pattern is `projections.definition.operators.pattern`; Spark runs this by
`projections.incremental.spark.pattern_matching`.
Tests: tests/unit/projections/incremental, tests/integration/projections/incremental.
"""
