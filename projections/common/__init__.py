"""Technical helpers that know no view: locks, files, Delta logs, offsets, background work.

Purpose: what nearly every other wing needs once. They import `projections.errors` and nothing
else of the package.
Entry points: `driver_lock` (one driver writes the views of a home), `store_lock` (batches share a
store, a cutover has it alone), `file_lock`, `background_task`, `spark_checkpoint`, `delta_log`,
`table_pins`, `scratch_dir`, `spill_file`, `task_files` and `task_fence` (bulk work in tasks),
`shared_folder` (a home on several machines), `throttle`, `offsets`, `fault`.
Invariants: no module here knows a view, a plan or a store by its type. A lock is freed when its
holder ends, however it ends.
Tests: tests/unit/projections/common, tests/integration/projections.
"""
