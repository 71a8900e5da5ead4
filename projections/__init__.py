"""Projections: views derived from the log of changes, kept correct in every store.

Purpose: one folder for each stage of a change, the job above them and what users declare below.

| wing | what is there |
|---|---|
| `common`, `errors` | technical parts independent of views; every error with its code |
| `definition` | what a user declares |
| `planning` | declared views bound to the tables as they are now |
| `changes` | from a record to a change that is applied or quarantined |
| `publishing` | consistent versions of all tables, positions, the read barrier |
| `stores` | Delta, OpenSearch and Valkey, one folder each |
| `incremental` | derived views, maintained from changes |
| `archive` | raw changes kept for good, and replay from them |
| `versions` | rebuild, hand-over, cutover, rollback |
| `verification`, `erasure`, `alerting` | compare and repair; forget a key; report rows |
| `job` | the Spark driver |

Entry points: `headwater` declares and runs; `job.driver.run` is the job.
Invariants: imports go down this table's order and never up (the contract `projections-layers`).
Spark is imported in `job` and `incremental.spark` only.
`published`, `cache_reader` and `search` only keep names that pages have shown.
Tests: tests/unit/projections, tests/integration/projections.
"""

from __future__ import annotations

from projections.definition.mirror import source
from projections.definition.registry import Declarations
from projections.definition.views import EventsRef, EventsView, MirrorView, Source, Store, TableRef
from projections.errors import ProjectionError
from projections.planning.view_plan import ViewPlan

__all__ = [
    "Declarations",
    "EventsRef",
    "EventsView",
    "MirrorView",
    "ProjectionError",
    "Source",
    "Store",
    "TableRef",
    "ViewPlan",
    "source",
]
