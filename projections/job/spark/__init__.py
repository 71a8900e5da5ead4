"""The session and its JVM: settings, jars, cluster, warm start.

Purpose: start Spark with what this job needs, on this machine or on a cluster.
Entry points: `session.start_session` and `session_beside`, `cluster` (standalone, YARN,
Kubernetes), `task_runs` (bulk work in tasks), `class_archive` and `training` (classes that the JVM
maps in place of loading them), `worker_daemon` (Python workers that have loaded our modules).
Invariants: the running interpreter is the workers' interpreter. Beside
`headwater.project.settings` only `session` reads the environment.
Tests: tests/unit/projections/job, tests/integration/projections/job.
"""
