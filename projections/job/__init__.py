"""The Spark driver: streaming queries that write every view, and the tasks beside them.

Purpose: `driver` takes the lock of the home and starts a `generation`: everything that runs while
views are bound to one state of their tables. A `streaming_query` passes batches to a
`batch_writer`; a large one of the tables is read by `backlog_tasks` before.
Entry points: `driver.run`, `generation`, `tasks` (what runs beside queries), `batch` (sessions
beside the job), `spark` (session, JVM, cluster), `status` (`run/job.json`), `backlog`,
`schema_watch`, `initial_load`, `bulk_load`, `backfill`, `store_recovery`, `data_loss`,
`spark_tasks` (tasks of rebuilds and comparisons, in executors).
Invariants: one driver writes a home. A query's checkpoint and its stores belong together and are
checked at each start. Loss is refused with an error code, and never ignored.
Tests: tests/unit/projections/job, tests/integration/projections/job.
"""

from __future__ import annotations
