"""Derived views, kept up to date by the changes of their inputs.

Purpose: find the keys of a query over several views that a change affects, compute their rows
and deliver these to every store.
Entry points: `analysis` (which keys; values only), `patterns` (matches in sequences of rows;
values only), `spark.maintainer` (the execution), `delivery` (rows of a derived table into search
and cache), `row_form`, `expectation_filter`, `explain`.
Invariants: the stored rows equal the query's full result; where that cannot be proven, the view is
computed completely. A batch's results are published with the versions of their inputs.
Tests: tests/unit/projections/incremental, tests/integration/projections/incremental.
"""
