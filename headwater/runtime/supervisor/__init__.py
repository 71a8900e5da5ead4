"""The supervisor: starts services in order, restarts them, and stops them.

Purpose: `up`, `down` and `status` of the local runtime.
Entry points: `control` (called by commands), `spawn` (a detached supervisor, tied by one pipe),
`supervisor` (its process), `unit` (one service's life).
Invariants: no process outlives its supervisor, however that ends; none is started twice in one
home; a service that dies too often fails with a code.
Tests: tests/unit/headwater/runtime, tests/integration/headwater/runtime.
"""
