"""The servers that can be spawned, each with its template, start and protocol probe.

Purpose: what is different about Postgres, Kafka, Connect, OpenSearch, Valkey and Spark; how
processes are watched is in `headwater.runtime.supervisor.supervisor`.
Entry points: one module for each server, `java_server` (heap and options of a JVM), `template`
and `templates/` (configuration, rendered here and by `docker/render.py`).
Invariants: a server is ready when its protocol answers, and not when its port is open. Containers
are given the same templates.
Tests: tests/unit/headwater/runtime, tests/integration/headwater/runtime.
"""
