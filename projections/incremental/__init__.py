"""Derived views, kept up to date by what changed in their inputs.

Purpose: of a query over several views, find the keys that a change affects, compute their rows
and deliver these to every store.
Entry points: `analysis` (which keys; values only), `patterns` (matches in sequences of rows;
values only), `spark.maintainer` (the execution), `delivery` (rows of a derived table into search
and cache), `row_form`, `expectation_filter`, `explain`.
Invariants: what is kept equals what the query gives as a whole; where that cannot be proven, the
view is computed as a whole. A batch's results are published with the versions they were made
from.
Tests: tests/unit/projections/incremental, tests/integration/projections/incremental.
"""
