"""Sending records: single ones that are waited for, and rows in bulk.

Purpose: announcements, snapshots and retries.
Entry points: `record_sender` (single records), `producer` (whole record batches, several under
way), `record_batch` (Kafka's format 2), `last_record` (the last record of a key made the newest
one).
Invariants: a record counts as sent when the brokers have acknowledged it. Order within a
partition is kept.
Tests: tests/unit/cdc, tests/integration/cdc.
"""
