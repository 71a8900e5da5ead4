"""Declared views bound to the tables as they are now.

Purpose: which columns a view has, how its rows are read, and what follows when a table changes.
Entry points: `binding.bind` (views and tables to plans), `view_plan.ViewPlan`,
`job_config.JobConfig` (what a job is configured with: values alone), `job_spec.JobSpec` (that
configuration and the views bound to their tables), `schema_policy`, `view_schemas` (the schema
that a view had before), `row_upcaster` (a row of an earlier schema read as one of today),
`impact`.
Invariants: a decision about a changed table is made once, under a lock, and noted in the source
database. Everything but `binding`, `view_schemas` and `impact` takes values and returns values.
Tests: tests/unit/projections/planning, tests/integration/projections/planning.
"""
