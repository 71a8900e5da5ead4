"""Consumer groups: one member, its lag, a position searched for, and a small key-value topic.

Purpose: what Kafka's client does for `cdc.consumer`, and what it must not do.
Entry points: `member.GroupMember`, `lag` (how far a group is behind), `position_search` (by time,
or by which change comes next), `key_value_topic` (what a group must not forget).
Invariants: an offset is committed only for what is done. A partition that was taken away is
written to no more.
Tests: tests/unit/cdc, tests/integration/cdc.
"""
