"""A tenant's reads and appends never touch another's."""

# ruff: noqa: D102, S101, PLR2004, SIM300  # tests, though they ship
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventstore.errors import ConditionFailedError, WrongExpectedVersionError
from eventstore.log import LogPart, StateSnapshot
from eventstore.model.event import Idempotency
from eventstore.model.expected_version import NO_STREAM, STREAM_EXISTS
from eventstore.model.query import Condition, Query, QueryItem, tagged
from eventstore.testing.sample import an_event, append_to, log_of, some_events, stream_of

if TYPE_CHECKING:
    from eventstore.log import EventLog

QUERIES = (
    Query(),
    Query(category="order"),
    Query((QueryItem(types=frozenset(["order.placed"])),)),
    tagged("a:1"),
)


class TenantContract:
    """A tenant is part of every stream's, event's, key's and snapshot's identity."""

    def test_streams_of_one_name_are_streams_of_each_tenant(self, log: EventLog) -> None:
        for tenant, count in (("acme", 2), ("zeta", 3)):
            log.append(
                append_to("order-1", *some_events(count), tenant=tenant, expected_version=NO_STREAM)
            )

        assert 2 == log.stream_version("acme", "order-1")
        assert 3 == log.stream_version("zeta", "order-1")
        assert ["acme"] * 2 == [e.tenant for e in stream_of(log, "order-1", tenant="acme")]
        assert [] == stream_of(log, "order-1")

    def test_another_tenant_s_stream_is_no_stream(self, log: EventLog) -> None:
        log.append(append_to("order-1", tenant="acme"))

        with pytest.raises(WrongExpectedVersionError) as refused:
            log.append(append_to("order-1", tenant="zeta", expected_version=STREAM_EXISTS))

        assert 0 == refused.value.actual

    @pytest.mark.parametrize("query", QUERIES, ids=["all", "category", "type", "tag"])
    def test_the_log_of_a_tenant_has_its_events_only(self, log: EventLog, query: Query) -> None:
        for number in range(6):
            tenant = ("acme", "zeta", "acme.eu")[number % 3]
            log.append(append_to("order-1", an_event(tags=("a:1",)), tenant=tenant))
        events = log_of(log, LogPart(query))

        assert 6 == len(events)
        for tenant in ("acme", "zeta", "acme.eu"):
            mine = [event for event in events if event.tenant == tenant]
            assert mine == log_of(log, LogPart(query), tenant=tenant)
            assert mine[::-1] == log_of(log, LogPart(query, backwards=True), tenant=tenant)
        assert [] == log_of(log, LogPart(query), tenant="nobody")

    def test_a_key_of_another_tenant_is_another_key(self, log: EventLog) -> None:
        for number, tenant in enumerate(("acme", "zeta")):
            key = Idempotency("k1", bytes([number] * 32))

            assert not log.append(append_to("order-1", tenant=tenant, idempotency=key)).repeated
        assert log.result_of("default", "k1") is None
        known = log.result_of("zeta", "k1")
        assert known is not None
        assert bytes([1] * 32) == known.digest

    def test_an_event_id_of_another_tenant_is_another_event(self, log: EventLog) -> None:
        event = an_event()
        log.append(append_to("order-1", event, tenant="acme"))

        assert not log.append(append_to("order-2", event, tenant="zeta")).repeated

    def test_another_tenant_s_events_change_no_boundary(self, log: EventLog) -> None:
        log.append(append_to("seat-1", an_event(tags=("seat:1",)), tenant="acme"))
        condition = Condition(tagged("seat:1"), 0)

        assert ([], 0) == log.read_boundary("zeta", tagged("seat:1"))
        log.append(append_to("seat-1", tenant="zeta", condition=condition))
        with pytest.raises(ConditionFailedError):
            log.append(append_to("seat-1", tenant="acme", condition=condition))

    def test_another_tenant_s_snapshot_is_no_snapshot(self, log: EventLog) -> None:
        log.save_snapshot("acme", StateSnapshot("order-1", "f@1", 1, b"1", bytes(32)))

        assert log.snapshot("zeta", "order-1", "f@1") is None
        assert log.snapshot("acme", "order-1", "f@1") is not None
