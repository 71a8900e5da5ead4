"""Putting closed streams away, dropping what is archived, forgetting keys."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
import structlog

from eventstore import EventStore
from eventstore.errors import (
    CompactionError,
    NameRefusedError,
    WrongExpectedVersionError,
    WrongKindError,
)
from eventstore.model.event import (
    SNAPSHOT_TYPE,
    AppendRequest,
    Idempotency,
    StoredEvent,
    StreamAppend,
    digest_of,
)
from eventstore.model.query import tagged
from eventstore.planning import snapshotting
from eventstore.postgres import retention
from eventstore.postgres.audit import PostgresAudit
from eventstore.postgres.compaction import TOMBSTONE
from eventstore.postgres.retention import PostgresRetention
from eventstore.upkeep.compaction import CompactionPolicy
from eventstore.upkeep.retention import RetentionReport, RetentionRule
from tests.fix_counters import ORIGINALS, STREAM, Added, Counter, Doubled, Named, Streams, types

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.integration

NOW = timedelta()
DAY = timedelta(days=1)
CLOSED = RetentionRule("counter", closing=frozenset({"counter.doubled"}), compact_closed_after=NOW)
DROP = RetentionRule("counter", drop_archived_after=NOW)


@pytest.fixture
def keeper(streams: Streams) -> PostgresRetention:
    return PostgresRetention(streams.dsn)


def apply(keeper: PostgresRetention, rule: RetentionRule, **options: object) -> RetentionReport:
    return keeper.apply(rule, tenant="default", **options)  # type: ignore[arg-type]


def sealed(streams: Streams) -> PostgresAudit:
    audit = PostgresAudit(streams.dsn, block=4)
    audit.seal()
    return audit


def test_closed_streams_are_compacted_and_others_are_not(
    streams: Streams, keeper: PostgresRetention
) -> None:
    streams.append(Added(1), Added(2), Doubled(), stream="counter-1")
    streams.append(Added(1), Doubled(), Added(2), stream="counter-2")
    streams.append(Doubled(), stream="counters-3")

    report = apply(keeper, CLOSED, fold=streams.fold)
    again = apply(keeper, CLOSED, fold=streams.fold)

    assert RetentionReport(streams=1, archived=3) == report
    assert RetentionReport() == again
    assert [(3, SNAPSHOT_TYPE)] == streams.rows("counter-1")
    assert 3 == len(streams.rows("counter-2"))
    assert 1 == len(streams.rows("counters-3"))
    assert streams.truth("counter-1") == streams.state("counter-1")


def test_a_closed_stream_that_is_not_old_enough_is_left_alone(
    streams: Streams, keeper: PostgresRetention
) -> None:
    streams.append(Added(1), Doubled())

    report = apply(keeper, replace(CLOSED, compact_closed_after=DAY), fold=streams.fold)

    assert RetentionReport() == report
    assert 2 == len(streams.rows())


def test_without_a_fold_a_closed_stream_keeps_its_head_and_its_originals(
    streams: Streams,
) -> None:
    streams.append(*map(Added, range(7)), Doubled())
    originals = streams.read()
    keeper = PostgresRetention(streams.dsn, events_max=3)

    report = apply(keeper, CLOSED)

    (stands,) = streams.read()
    assert RetentionReport(streams=1, archived=8) == report
    assert (8, TOMBSTONE) == (stands.stream_position, stands.data)
    assert streams.fold.base_of(stands) is None
    assert originals == streams.read(ORIGINALS)
    assert 9 == streams.append(Added(1), expected=8)
    with pytest.raises(WrongExpectedVersionError):
        streams.append(Added(1), expected=7)
    assert PostgresAudit(streams.dsn).verify().clean


def test_a_state_is_never_replaced_by_no_state(streams: Streams, keeper: PostgresRetention) -> None:
    streams.append(Added(1), Added(2), Doubled())
    streams.compact(2)
    before = streams.read()

    report = apply(keeper, CLOSED)

    assert [STREAM] == [refusal.stream for refusal in report.refused]
    assert before == streams.read()


def test_a_fold_of_another_tenant_is_refused(streams: Streams, keeper: PostgresRetention) -> None:
    with pytest.raises(CompactionError):
        keeper.apply(CLOSED, tenant="other", fold=streams.fold)


def test_what_is_archived_is_only_counted_unless_the_call_allows_to_drop_it(
    streams: Streams, keeper: PostgresRetention
) -> None:
    streams.append(*map(Added, range(9)))
    streams.compact(6)
    sealed(streams)

    report = apply(keeper, DROP)

    assert RetentionReport(droppable=6) == report
    assert 9 == len(streams.read(ORIGINALS))


def test_dropped_originals_are_exported_and_gone_and_the_audit_still_verifies(
    streams: Streams, keeper: PostgresRetention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "DROPPED_MAX", 4)
    streams.append(*map(Added, range(9)))
    streams.append(*map(Added, range(3)), stream="counter-2")
    originals = streams.read()
    streams.compact(6)
    audit = sealed(streams)
    head = audit.head()
    exported: list[list[StoredEvent]] = []

    report = apply(keeper, DROP, drop_archived=True, export=lambda some: exported.append([*some]))
    again = apply(keeper, DROP, drop_archived=True)

    verified = audit.verify(head)
    assert RetentionReport(dropped=6) == report
    assert RetentionReport() == again
    assert [originals[:4], originals[4:6]] == exported
    assert originals[6:] == streams.read(ORIGINALS)
    assert (6, 6, ()) == (verified.events, verified.dropped, verified.findings)
    assert 9 == streams.log.stream_version("default", STREAM)
    tags = streams.log.read_boundary("default", tagged("parity:1")).events
    assert [8, 2] == [event.stream_position for event in tags]
    with psycopg.connect(streams.dsn) as connection:
        row = connection.execute("SELECT count(*) FROM eventstore.event_tags").fetchone()
    assert (6,) == row


def test_after_dropping_tampering_is_still_found(
    streams: Streams, keeper: PostgresRetention
) -> None:
    streams.append(*map(Added, range(9)))
    streams.compact(6)
    audit = sealed(streams)
    apply(keeper, DROP, drop_archived=True)
    head = audit.head()

    with psycopg.connect(streams.dsn) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE eventstore.events SET actor = 'me' WHERE global_position = 8")
        edited = audit_findings(audit, connection)
        connection.execute("UPDATE eventstore.events SET actor = NULL WHERE global_position = 8")
        connection.execute("DELETE FROM eventstore.compactions WHERE action = 'dropped'")
        connection.commit()

    assert [("changed", 8)] == edited
    assert ("removed", 1) in [(one.kind, one.position) for one in audit.verify().findings]
    assert "compaction" in [one.kind for one in audit.verify(head).findings]


def audit_findings(audit: PostgresAudit, connection: psycopg.Connection) -> list[tuple[str, int]]:
    connection.commit()
    return [(one.kind, one.position) for one in audit.verify().findings]


def test_what_is_not_sealed_is_not_dropped(streams: Streams, keeper: PostgresRetention) -> None:
    streams.append(*map(Added, range(4)))
    sealed(streams)
    streams.append(*map(Added, range(4)))
    streams.compact(8)

    report = apply(keeper, DROP, drop_archived=True)

    assert RetentionReport(dropped=4) == report
    with psycopg.connect(streams.dsn) as connection, pytest.raises(psycopg.Error, match="sealed"):
        connection.execute("SELECT eventstore.drop_archived('default', %s, 8)", (STREAM,))


@pytest.mark.parametrize("age", [DAY, timedelta.max])
def test_what_is_not_old_enough_is_not_dropped(
    streams: Streams, keeper: PostgresRetention, age: timedelta
) -> None:
    streams.append(*map(Added, range(4)))
    streams.compact(4)
    sealed(streams)

    report = apply(keeper, replace(DROP, drop_archived_after=age), drop_archived=True)

    assert RetentionReport() == report


def test_an_export_that_fails_drops_nothing(streams: Streams, keeper: PostgresRetention) -> None:
    streams.append(*map(Added, range(4)))
    streams.compact(4)
    sealed(streams)

    def full(events: Sequence[StoredEvent]) -> None:
        raise OSError(len(events))

    with pytest.raises(OSError, match="4"):
        apply(keeper, DROP, drop_archived=True, export=full)

    assert 4 == len(streams.read(ORIGINALS))


def test_an_export_that_would_never_run_drops_nothing(
    streams: Streams, keeper: PostgresRetention
) -> None:
    streams.append(*map(Added, range(4)))
    streams.compact(4)
    sealed(streams)

    async def archive(events: Sequence[StoredEvent]) -> None:
        raise OSError(len(events))

    def returning(events: Sequence[StoredEvent]) -> object:
        return archive(events)

    with pytest.raises(WrongKindError, match="export"):
        apply(keeper, DROP, drop_archived=True, export=archive)
    report = apply(keeper, DROP, drop_archived=True, export=returning)

    assert [WrongKindError] == [type(refusal.error) for refusal in report.refused]
    assert 4 == len(streams.read(ORIGINALS))


def test_a_sealed_state_keeps_its_originals(streams: Streams, keeper: PostgresRetention) -> None:
    streams.append(Named("p1", "Ada"), Added(1))
    streams.compact()
    sealed(streams)

    report = apply(keeper, DROP, drop_archived=True)

    assert RetentionReport(kept=1) == report
    assert 2 == len(streams.read(ORIGINALS))


def test_without_its_originals_a_stream_is_compacted_further_by_the_same_fold(
    streams: Streams, keeper: PostgresRetention
) -> None:
    streams.append(*map(Added, range(6)))
    expected = streams.state()
    streams.compact(4)
    sealed(streams)
    apply(keeper, DROP, drop_archived=True)

    report = streams.compactor.compact_category(
        streams.fold, CompactionPolicy("counter", larger_than=0, keep_events=0)
    )

    assert (1, 2) == (report.streams, report.events)
    assert expected == streams.state()
    newer = replace(streams.fold.decider, version=2)
    with pytest.raises(CompactionError, match="from its first event"):
        streams.compact(decider=newer)


def test_a_snapshot_of_an_earlier_version_is_read_where_its_originals_are_gone(
    streams: Streams, keeper: PostgresRetention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names no state; as long as the originals are there, they are folded instead."""
    decider = streams.fold.decider
    store = EventStore(streams.log, types=types, keyring=streams.ring)
    streams.append(*map(Added, range(6)))
    expected = streams.state()
    with monkeypatch.context() as earlier:
        earlier.setattr(snapshotting, "fold_name", snapshotting.earlier_fold_name)
        streams.compact(4)
    sealed(streams)
    with structlog.testing.capture_logs() as logs:
        before = store.state(decider, "1").value
    apply(keeper, DROP, drop_archived=True)
    after = store.state(decider, "1")

    assert ["made by another fold"] == [entry["reason"] for entry in logs]
    assert (expected, expected, 6) == (before, after.value, after.version)
    assert ("counter-1", 5, 1) == streams.compact(5)
    assert expected == store.state(decider, "1").value == streams.state()


def test_another_fold_of_a_compacted_stream_never_reads_its_snapshot(streams: Streams) -> None:
    def largest(state: Counter, event: Added) -> Counter:
        return replace(state, total=max(state.total, event.number))

    store = EventStore(streams.log, types=types, keyring=streams.ring)
    streams.append(*map(Added, range(5)))
    streams.compact(4)

    assert 4 == store.state(replace(streams.fold.decider, evolve=largest), "1").value.total
    assert streams.truth() == store.state(streams.fold.decider, "1").value


def test_keys_are_forgotten_when_they_are_old_enough(
    streams: Streams, keeper: PostgresRetention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEYS_MAX", 2)
    for tenant, key in (*(("default", f"key-{number}") for number in range(5)), ("other", "key")):
        made = streams.fold.codec.encode(Added(1), tenant=tenant, stream=STREAM)
        request = AppendRequest((StreamAppend(STREAM, (made,)),), tenant)
        streams.log.append(replace(request, idempotency=Idempotency(key, digest_of(request))))

    young = keeper.forget_keys(DAY, tenant="default")
    old = keeper.forget_keys(NOW, tenant="default")

    assert (0, 5) == (young, old)
    assert streams.log.result_of("default", "key-1") is None
    assert streams.log.result_of("other", "key") is not None
    assert 5 == streams.log.stream_version("default", STREAM)


@pytest.mark.parametrize("tenant", [None, "", "two words"])
def test_a_tenant_that_cannot_be_is_not_one_without_events(
    keeper: PostgresRetention, tenant: str
) -> None:
    for call in (
        lambda: keeper.forget_keys(NOW, tenant=tenant),
        lambda: keeper.apply(DROP, tenant=tenant),
    ):
        with pytest.raises(NameRefusedError):
            call()
