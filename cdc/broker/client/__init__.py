"""Conversations with the brokers: connections, time limits, translated errors.

Purpose: the one place that opens admin clients and consumers. Entry points: `admin` (one short
conversation), `bounded_consumer` (waits for no broker longer than for an answer), `probe` (whether
a broker answers, in Kafka's own protocol). Invariants: every wait has a limit. Errors distinguish
an unreachable broker from a refusal. Tests: tests/unit/cdc, tests/integration/cdc.
"""
