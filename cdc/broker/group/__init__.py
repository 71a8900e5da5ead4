"""Consumer groups: a member, its lag, position search, and a small key-value topic.

Purpose: the parts of Kafka's client that `cdc.consumer` uses.
Entry points: `member.GroupMember`, `lag` (lag of a group), `position_search` (by time, or by the
next change), `key_value_topic` (durable state of a group).
Invariants: an offset is committed only after all earlier records are done. Nothing is written for a
partition that was revoked.
Tests: tests/unit/cdc, tests/integration/cdc.
"""
