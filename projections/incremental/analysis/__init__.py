"""Determines the keys of a query that a change of its inputs affects.

Purpose: a proof that rows of other keys stay as they are, or the decision to compute everything.
Entry points: `strategy` (by which columns a view is kept), `lineage` (finds the paths and proves
that they miss nothing), `query_plan` (Spark's logical plan, read from its JSON), `path` (from an
input's changed rows to the columns that address a view's rows), `pruning` (rows of inputs that
need not be read, and why), `ranges` (a few ranges in which all of some values lie).
Invariants: values only; `projections.incremental.spark` asks Spark for its plan and executes.
Tests: tests/unit/projections/incremental, tests/integration/projections/incremental.
"""
