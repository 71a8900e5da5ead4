"""Declarations of derived views: views computed from other views by a query, function or pattern.

Purpose: what `view.sql`, `view.aggregate`, `view.pattern` and their like check and make.
Entry points: `declare` (SQL, aggregates, functions, patterns), `percolate` (standing queries),
`lagged`, `heavy_hitters` and `clock_skew` (queries written for the user), `view_function` and
`function_source` (a function, and the part of its module that belongs to it).
Invariants: a declaration ends as one `DerivedView`; its text tells it from another, so an edit
elsewhere in a module computes nothing again.
Tests: tests/unit/projections/definition, tests/integration/projections.
"""
