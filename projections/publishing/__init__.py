"""Publishes consistent versions of all tables, and the position of each view.

Purpose: readers see whole transactions, and a writer can wait until a view has its own write.
Entry points: `frontier.Frontier` (the position up to which a query is complete), `boundary` (where
a batch is divided), `published_versions.Published` (the published versions), `positions` (in the
source database), `read_barrier` (wait for a position, measure lag), `stable_table` (one path for
engines that read Delta themselves), `batch_fence`.
Invariants: `applied_through` is proven, not estimated. A published version is complete in every
table before it is named, and its files stay as long as readers may use it.
Tests: tests/unit/projections/publishing, tests/integration/projections/publishing.
"""
