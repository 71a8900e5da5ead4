"""Expectations: conditions on the rows of a view, and the treatment of rows that do not meet them.

Purpose: the SQL of a condition, parsed and evaluated as Postgres would, with its three truth
values.
Entry points: `expectation` (the declared value), `parser`, `evaluator`, `checker` (one view's
conditions over rows, with counts).
Invariants: a condition reads one row and nothing else, so every store and every replay decides
alike. A condition that is NULL is not met.
Tests: tests/unit/projections/definition, tests/integration/projections.
"""
