"""Declarations of derived views: views computed from other views by a query, function or pattern.

Purpose: check the arguments of `view.sql`, `view.aggregate`, `view.pattern` and similar functions,
and create the view.
Entry points: `declare` (SQL, aggregates, functions, patterns), `percolate` (standing queries),
`lagged`, `heavy_hitters` and `clock_skew` (queries written for the user), `view_function` and
`function_source` (a function, and the part of its module that belongs to it).
Invariants: a declaration creates one `DerivedView`. Its text identifies it, so an edit elsewhere in
a module recomputes nothing.
Tests: tests/unit/projections/definition, tests/integration/projections.
"""
