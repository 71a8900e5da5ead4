"""Alerts: rows that meet a condition are reported to a channel, once for each episode.

Purpose: watch views, note episodes and messages in the source database, deliver them.
Entry points: `watcher` (finds rows that begin or end to meet a condition), `evaluator` (the
condition), `episode` (one row's time in it), `tables` (episodes and messages), `dispatcher` and
`channels` (delivery, with retries), `signature` (signed webhooks).
Invariants: an episode is noted before a message of it is sent, so a message may come twice, with
the same id, and is never lost. One dispatcher works at a time.
Tests: tests/unit/projections/alerting, tests/integration/projections/alerting.
"""
