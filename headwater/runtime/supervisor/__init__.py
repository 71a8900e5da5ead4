"""The supervisor: starts services in order, restarts them, and stops them.

Purpose: `up`, `down` and `status` of the local runtime.
Entry points: `control` (called by commands), `spawn` (starts a detached supervisor, connected by a
pipe), `supervisor` (its process), `unit` (the life cycle of one service).
Invariants: no process outlives its supervisor, even after a kill; no service is started twice in
one home; a service that dies too often fails with an error code.
Tests: tests/unit/headwater/runtime, tests/integration/headwater/runtime.
"""
