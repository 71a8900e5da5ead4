"""Background tasks beside the job's queries.

Purpose: a slow or failing task delays no batch.
Entry points: `positions` (samples the frontier and reports positions), `maintenance` (quarantine,
snapshots, versions), `derived_tables` (computes derived views), `derived_stores` (delivers them
to search and cache), `derived_checks` (compares on request), `stable_tables`, `handover` (adopts
a version that a rebuild has filled).
Invariants: a task that fails is reported in `run/job.json` and restarted; one that cannot continue
ends the job with HW-P029.
Tests: tests/unit/projections/job, tests/integration/projections/job.
"""
