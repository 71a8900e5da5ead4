"""Compacting real streams: what is kept, what is refused, and what the audit finds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg
import pytest

from eventstore.errors import (
    CompactionError,
    WrongExpectedVersionError,
)
from eventstore.log import LogPart, StreamPart
from eventstore.model.event import SNAPSHOT_TYPE, AppendRequest, StoredEvent, StreamAppend
from eventstore.model.expected_version import ANY
from eventstore.model.query import tagged
from eventstore.postgres import compaction
from eventstore.postgres.audit import PostgresAudit
from eventstore.postgres.compaction import PostgresCompactor
from eventstore.privacy.personal import Redacted
from eventstore.upkeep.compaction import CompactionPolicy
from tests.fix_counters import (
    ORIGINALS,
    STREAM,
    Added,
    Counter,
    Doubled,
    Named,
    Streams,
    counting,
    evolve,
)

if TYPE_CHECKING:
    from eventstore.postgres.log import PostgresEventLog

pytestmark = pytest.mark.integration


def test_a_prefix_becomes_one_event_in_the_place_of_its_last(streams: Streams) -> None:
    streams.append(*map(Added, range(1, 11)))
    before = streams.read()

    done = streams.compact(6)

    after = streams.read()
    assert (STREAM, 6, 6) == done
    assert [(6, SNAPSHOT_TYPE), *[(place, "counter.added") for place in range(7, 11)]] == (
        streams.rows()
    )
    assert before[6:] == after[1:]
    assert before[5].global_position == after[0].global_position
    assert after[0].event_id not in {row.event_id for row in before}
    assert streams.truth() == streams.state()
    streams.check_every_version()


def test_originals_stay_byte_for_byte_in_the_log_and_in_the_archive(streams: Streams) -> None:
    streams.append(*map(Added, range(1, 11)))
    with psycopg.connect(streams.dsn) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "UPDATE eventstore.events"
            " SET data = format('{ \"number\" :%s }', stream_position)::json"
        )
    log, stream, tags = read_log(streams.log), streams.read(), tagged_positions(streams)

    streams.compact(10)

    assert log == read_log(streams.log)
    assert stream == streams.read(ORIGINALS)
    assert stream[:7] == streams.read(replace(ORIGINALS, through=7))
    assert stream == streams.read(StreamPart(as_of=stream[-1].recorded_at))
    assert tags == tagged_positions(streams)


def read_log(log: PostgresEventLog) -> list[StoredEvent]:
    return list(log.read_log(None))


def tagged_positions(streams: Streams) -> list[int]:
    found = streams.log.read_boundary("default", tagged("parity:1"))
    listed = streams.log.read_log("default", LogPart(query=tagged("parity:1")))
    positions = [event.global_position for event in found.events]
    assert positions == [event.global_position for event in listed]
    return positions


def test_versions_go_on_after_the_head_was_folded(streams: Streams) -> None:
    streams.append(*map(Added, range(5)))

    streams.compact()

    assert [(5, SNAPSHOT_TYPE)] == streams.rows()
    assert 5 == streams.log.stream_version("default", STREAM)
    assert 6 == streams.append(Doubled(), expected=5)
    with pytest.raises(WrongExpectedVersionError) as caught:
        streams.append(Doubled(), expected=4)
    assert 6 == caught.value.actual
    assert streams.truth() == streams.state()


def test_a_compacted_stream_is_compacted_further(streams: Streams) -> None:
    streams.append(*map(Added, range(8)))
    streams.compact(3)

    done = streams.compact(6)

    assert (STREAM, 6, 3) == done
    assert 3 == len(streams.rows())
    assert range(1, 9) == range(1, 1 + len(streams.read(ORIGINALS)))
    streams.check_every_version()


def test_to_compact_again_as_far_or_less_far_changes_nothing(streams: Streams) -> None:
    streams.append(*map(Added, range(8)))
    streams.compact(5)
    before = streams.read()

    assert (STREAM, 5, 0) == streams.compact(5)
    assert (STREAM, 5, 0) == streams.compact(2)
    assert before == streams.read()


@pytest.mark.parametrize("through", [0, 4])
def test_what_the_stream_does_not_have_is_not_folded(streams: Streams, through: int) -> None:
    streams.append(*map(Added, range(3)))

    with pytest.raises(CompactionError, match="cannot be folded through"):
        streams.compact(through)


def test_a_stream_that_is_not_there_is_not_compacted(streams: Streams) -> None:
    with pytest.raises(CompactionError):
        streams.compact()


def test_a_long_prefix_is_folded_in_steps_that_move_few_rows_each(streams: Streams) -> None:
    streams.append(*map(Added, range(20)))
    streams.compactor = PostgresCompactor(streams.dsn, events_max=6)

    done = streams.compact(17)

    with psycopg.connect(streams.dsn) as connection:
        ends = connection.execute(
            "SELECT through_position FROM eventstore.compactions ORDER BY number"
        ).fetchall()
    assert (STREAM, 17, 17) == done
    assert [(6,), (12,), (17,)] == ends
    streams.check_every_version()


def test_a_new_version_of_the_fold_folds_the_originals_again(streams: Streams) -> None:
    streams.append(*map(Added, range(8)))
    streams.compact(5)

    newer = counting(version=2)
    done = streams.compact(5, decider=newer)

    streams.fold = replace(streams.fold, decider=newer)
    assert (STREAM, 5, 0) == done
    assert streams.truth() == streams.state()


def test_a_fold_that_differs_later_leaves_the_stream_as_it_was(streams: Streams) -> None:
    streams.append(*map(Added, range(8)))
    before = streams.read()
    calls: list[int] = []

    def impure(state: Counter, event: Added) -> Counter:
        calls.append(event.number)
        return Counter(state.total + len(calls))

    with pytest.raises(CompactionError, match="folds differently"):
        streams.compact(5, decider=counting(impure))

    assert before == streams.read()
    assert before == streams.read(ORIGINALS)


@pytest.mark.parametrize("expected", [ANY, 1], ids=["any", "exact"])
@pytest.mark.parametrize("tags", [(), ("a:1",)], ids=["plain", "tagged"])
def test_an_event_whose_id_is_archived_is_known_by_it(streams: Streams, expected, tags) -> None:
    streams.append(Added(1))
    (first,) = streams.read()
    streams.compact()
    again = replace(
        streams.fold.codec.encode(Added(1), tenant="default", stream=STREAM),
        event_id=first.event_id,
        tags=tags,
    )
    done = streams.log.append(AppendRequest((StreamAppend(STREAM, (again,), expected),)))

    assert (True, 1) == (done.repeated, done.version)
    assert 1 == streams.log.stream_version("default", STREAM)


def test_an_event_whose_id_is_archived_already_is_not_archived_again(streams: Streams) -> None:
    """No append can do that; a hand in the table can."""
    streams.append(Added(1))
    streams.compact()
    with psycopg.connect(streams.dsn) as hand:
        hand.execute(
            "INSERT INTO eventstore.events (global_position, tenant, stream, stream_position,"
            " type, schema_version, event_id, data, occurred_at)"
            " SELECT nextval('eventstore.global_position'), tenant, stream, 2, type,"
            " schema_version, event_id, data, occurred_at FROM eventstore.archived_events"
        )

    with pytest.raises(CompactionError, match="cannot be archived"):
        streams.compact()


def test_tenants_are_apart(streams: Streams) -> None:
    other = Streams(streams.log, streams.dsn, "other")
    for which in (streams, other):
        which.append(*map(Added, range(4)))

    streams.compact(3)

    assert 2 == len(streams.rows())
    assert 4 == len(other.rows())


def test_a_category_is_compacted_by_its_policy_and_then_done(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "STREAMS", 2)
    sizes = {f"counter-{number}": number for number in range(1, 8)}
    sizes |= {"counter": 6, "counter-é": 6, "counters-1": 6, "order-1": 6}
    for stream, size in sizes.items():
        streams.append(*map(Added, range(size)), stream=stream)
    policy = CompactionPolicy("counter", larger_than=5, keep_events=2)

    report = streams.compactor.compact_category(streams.fold, policy)
    again = streams.compactor.compact_category(streams.fold, policy)

    compacted = {stream for stream in sizes if len(streams.rows(stream)) == 3}
    assert {"counter", "counter-6", "counter-7", "counter-é"} == compacted - {"counter-3"}
    assert (4, 4 + 4 + 5 + 4, ()) == (report.streams, report.events, report.refused)
    assert (0, 0, ()) == (again.streams, again.events, again.refused)
    assert all(streams.truth(stream) == streams.state(stream) for stream in compacted)


def test_a_stream_that_cannot_be_folded_does_not_hold_the_others_up(streams: Streams) -> None:
    streams.append(Added(1), Added(2), stream="counter-1")
    streams.append(Added(1), Added(-1), stream="counter-2")
    streams.append(Added(1), Added(2), stream="counter-3")

    def failing(state: Counter, event: Added) -> Counter:
        if event.number < 0:
            raise ValueError
        return evolve(state, event)

    fold = replace(streams.fold, decider=counting(failing))
    report = streams.compactor.compact_category(
        fold, CompactionPolicy("counter", larger_than=0, keep_events=0)
    )

    assert 2 == report.streams
    assert ["counter-2"] == [refusal.stream for refusal in report.refused]
    assert "ValueError at version 2" == report.refused[0].error.detail


def test_a_fold_of_another_category_is_refused(streams: Streams) -> None:
    with pytest.raises(CompactionError):
        streams.compactor.compact_category(streams.fold, CompactionPolicy("order"))


def test_a_sealed_state_of_a_forgotten_person_gives_way_to_the_originals(streams: Streams) -> None:
    streams.append(Named("p1", "Ada"), Added(1), Added(2), Added(3))
    streams.compact(2)
    (first, *_) = streams.read()
    assert b"Ada" not in first.data
    assert streams.truth() == streams.state()

    streams.ring.shred("default", "p1")

    redacted = Counter(11, 4, str(Redacted("p1")))
    assert streams.state() is None
    assert redacted == streams.truth()
    assert (STREAM, 3, 1) == streams.compact(3)
    assert redacted == streams.state()


def test_the_audit_knows_what_compaction_does(streams: Streams) -> None:
    audit = PostgresAudit(streams.dsn, block=4)
    streams.append(*map(Added, range(9)))
    head = audit.seal()
    streams.compact(3)
    streams.compact(7)
    later = audit.seal()

    assert (9, 2) == (later.event_total, later.compactions)
    assert audit.verify(head).clean
    assert audit.verify(later).clean


SNAPSHOT_TAMPERED = {
    "state": "UPDATE eventstore.events SET data = (data::jsonb || '{\"state\": 1}')::json"
    " WHERE type = '$snapshot'",
    "time": "UPDATE eventstore.events SET recorded_at = recorded_at - interval '1 us'"
    " WHERE type = '$snapshot'",
    "gone": "DELETE FROM eventstore.events WHERE type = '$snapshot'",
}


@pytest.mark.parametrize("how", SNAPSHOT_TAMPERED)
def test_a_tampered_snapshot_is_found_by_the_audit(streams: Streams, how: str) -> None:
    streams.append(*map(Added, range(9)))
    streams.compact(3)
    streams.compact(7)

    tamper(streams, SNAPSHOT_TAMPERED[how])

    report = PostgresAudit(streams.dsn).verify()
    assert [("snapshot", 7)] == [(one.kind, one.position) for one in report.findings]


def test_a_tampered_record_of_a_compaction_is_found_by_the_audit(streams: Streams) -> None:
    audit = PostgresAudit(streams.dsn)
    streams.append(*map(Added, range(9)))
    streams.compact(3)
    streams.compact(7)
    head = audit.seal()

    tamper(streams, "DELETE FROM eventstore.compactions WHERE number = 2")
    cut = [(one.kind, one.position) for one in audit.verify(head).findings]
    tamper(streams, "UPDATE eventstore.compactions SET through_position = 2")
    edited = [(one.kind, one.position) for one in audit.verify().findings]

    assert [("compaction", 3), ("snapshot", 3), ("misplaced", 4)] == cut
    assert ("compaction", 3) == edited[0]


def tamper(streams: Streams, statement: str) -> None:
    with psycopg.connect(streams.dsn) as connection:
        connection.execute("SET session_replication_role = replica")
        assert connection.execute(statement).rowcount > 0


def test_an_application_s_role_cannot_compact(streams: Streams) -> None:
    streams.append(Added(1), Added(2))
    with psycopg.connect(streams.dsn) as connection:
        connection.execute("CREATE ROLE application")
        connection.execute("SELECT eventstore.grant_use('application')")
        connection.execute("SET ROLE application")
        connection.execute("SELECT set_config('eventstore.tenant', 'default', false)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(
                "SELECT eventstore.compact('default', %s, %s, 1, gen_random_uuid(), '{}')",
                (STREAM, streams.read()[0].event_id),
            )
        connection.rollback()

    assert 2 == len(streams.rows())


def test_no_stream_is_not_what_a_compacted_stream_is(streams: Streams) -> None:
    streams.append(*map(Added, range(4)))
    streams.compact(3)

    with pytest.raises(WrongExpectedVersionError):
        streams.append(Doubled(), expected=0)

    assert [3, 4] == [place for place, _ in streams.rows()]


def test_times_of_the_snapshot_say_when_it_was_made(streams: Streams) -> None:
    streams.append(*map(Added, range(4)))
    originals = streams.read()
    now = datetime.now(UTC)

    streams.compact(3)

    snapshot = streams.read()[0]
    assert originals[2].occurred_at == snapshot.occurred_at
    assert now <= snapshot.recorded_at
