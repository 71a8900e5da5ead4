"""Conversations with the brokers: connections, time limits, translated errors.

Purpose: the one place that opens admin clients and consumers.
Entry points: `admin` (one short conversation), `bounded_consumer` (a consumer whose waits have a
limit), `probe` (whether a broker answers).
Invariants: every wait has a limit. Errors distinguish an unreachable broker from a refusal.
Tests: tests/unit/cdc, tests/integration/cdc.
"""
