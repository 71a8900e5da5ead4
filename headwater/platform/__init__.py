"""A project assembled: its services, source, job and views.

Purpose: from settings and declarations to specifications of capture, runtime and job.
Entry points: `platform.Platform` (up, down, run, doctor), `deployment` (addresses of one
project), `specs` (settings to specifications), `view_catalog` (declared and kept views),
`job_status`, `impact` (what a migration does to views), `doctor`, `database`.
Invariants: reading a status changes nothing. Knows nothing of `headwater.reading` and
`headwater.operations`, which stand on it.
Tests: tests/unit/headwater/platform, tests/integration/headwater.
"""
