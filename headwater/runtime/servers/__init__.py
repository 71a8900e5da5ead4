"""The servers that can be spawned, each with its template, start and protocol probe.

Purpose: the specifics of Postgres, Kafka, Connect, OpenSearch, Valkey and Spark;
`headwater.runtime.supervisor.supervisor` supervises their processes.
Entry points: one module for each server, `java_server` (heap and options of a JVM), `template`
and `templates/` (configuration, rendered here and by `docker/render.py`).
Invariants: a server is ready when its protocol answers, not when its port is open. Containers use
the same templates.
Tests: tests/unit/headwater/runtime, tests/integration/headwater/runtime.
"""
