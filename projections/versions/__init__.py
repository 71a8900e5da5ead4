"""Versions of views: rebuild, hand-over to the job, compare, cutover, rollback, retire.

Purpose: a changed definition gets a version of its own, filled beside the active one; readers are
moved in one step.
Entry points: `registry` (in the source database) and `version` (its values), `rebuild` (plan,
begin, build, wait), `fill`, `fill_from_archive`, `handover`, `cutover`, `routing` (the active
version of each store), `compare`, `retire`, `dependents` and `derived` (versions of derived views),
`function_store`.
Invariants: a physical name is never used twice. Readers never see an error, an empty view or a
step back. A killed rebuild can be continued or dropped, and never harms the active version.
Tests: tests/unit/projections/versions, tests/integration/projections/versions.
"""
