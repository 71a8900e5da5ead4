"""Alerts: rows that meet a condition are reported to a channel, once for each episode.

Purpose: watch views, record episodes and messages in the source database, and deliver them.
Entry points: `watcher` (finds rows that begin or end to meet a condition), `evaluator` (the
condition), `episode` (one row's time in it), `tables` (episodes and messages), `dispatcher` and
`channels` (delivery, with retries), `signature` (signed webhooks).
Invariants: an episode is recorded before its message is sent, so a message is never lost, but may
be delivered twice with the same id. One dispatcher works at a time.
Tests: tests/unit/projections/alerting, tests/integration/projections/alerting.
"""
