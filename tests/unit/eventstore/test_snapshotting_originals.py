"""Saved states beside personal data, and beside compacted streams."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import structlog

from eventstore import (
    CompactedPrefix,
    CompactionError,
    Redacted,
    StreamPart,
)
from eventstore.memory import MemoryEventLog
from eventstore.privacy.keyring import MemoryKeyRing
from tests.fix_account import (
    Deposit,
    Deposited,
    HookedLog,
    Open,
    Opened,
    Withdraw,
)
from tests.support.saved_states import (
    STREAM,
    a_store,
    compact,
    reasons,
    saved,
    state_of,
)


class TestPersonal:
    def test_a_state_with_a_person_in_it_is_sealed(self):
        store = a_store(MemoryEventLog(), ring=MemoryKeyRing(), snapshot_every=2)
        store.handle(Open("a", "Ada Lovelace"))
        store.handle(Deposit("a", 1))

        assert (2, ("a",)) == (saved(store).stream_position, saved(store).subjects)
        assert b"Lovelace" not in saved(store).state
        assert "Ada Lovelace" == state_of(store).value.owner

    def test_who_is_in_an_earlier_snapshot_is_in_the_next(self):
        store = a_store(MemoryEventLog(), ring=MemoryKeyRing(), snapshot_every=2)
        store.handle(Open("a", "Ada Lovelace"))
        store.handle(Deposit("a", 1))
        store.handle(Deposit("a", 1, 4))

        assert (6, ("a",)) == (saved(store).stream_position, saved(store).subjects)
        assert b"Lovelace" not in saved(store).state

    def test_the_state_of_who_is_forgotten_comes_from_the_events_redacted(self):
        ring = MemoryKeyRing()
        store = a_store(MemoryEventLog(), ring=ring, snapshot_every=2)
        store.handle(Open("a", "Ada"))
        store.handle(Deposit("a", 1))
        ring.shred("default", "a")

        with structlog.testing.capture_logs() as logs:
            state = state_of(store)

        assert (Redacted("a"), 1) == (state.value.owner, state.value.balance)
        assert ["a subject is forgotten"] == reasons(logs)

    def test_who_is_forgotten_does_not_keep_the_stream_from_being_saved_again(self):
        ring = MemoryKeyRing()
        store = a_store(MemoryEventLog(), ring=ring, snapshot_every=2)
        store.handle(Open("a", "Ada"))
        ring.shred("default", "a")
        store.handle(Deposit("a", 1))

        assert (2, ()) == (saved(store).stream_position, saved(store).subjects)
        assert Redacted("a") == state_of(store).value.owner

    def test_a_sealed_state_is_ignored_where_there_is_no_ring(self):
        log = MemoryEventLog()
        store = a_store(log, ring=MemoryKeyRing(), snapshot_every=2)
        store.append(STREAM, [Opened("a", "Ada"), Deposited("a", 1)])
        store.handle(Deposit("a", 1, 2))
        other = a_store(log, ring=MemoryKeyRing(), snapshot_every=2)

        with structlog.testing.capture_logs() as logs, pytest.raises(Exception, match="no key"):
            state_of(other)
        assert ["cannot be opened"] == reasons(logs)


class TestCompacted:
    @pytest.fixture
    def store(self):
        store = a_store(HookedLog(), ring=MemoryKeyRing())
        for amount in (1, 2, 3, 4, 5):
            store.handle(Deposit("a", amount))
        return store

    def test_the_state_goes_on_from_what_stands_for_the_beginning(self, store):
        compact(store, 3)
        store.log.calls.clear()

        assert (15, 5) == (state_of(store).value.balance, state_of(store).version)
        assert ["read_stream"] * 2 == store.log.calls
        assert 6 == store.handle(Withdraw("a", 15)).version

    @pytest.mark.parametrize(("version", "balance"), [(0, 0), (1, 1), (2, 3), (3, 6), (4, 10)])
    def test_a_version_inside_of_it_comes_from_the_archive(self, store, version, balance):
        compact(store, 3)

        state = state_of(store, at_version=version)

        assert (balance, version) == (state.value.balance, state.version)

    def test_an_instant_is_told_by_the_originals(self, store):
        compact(store, 5)
        at = list(store.read_all())[1].recorded_at

        assert 2 <= state_of(store, as_of=at).version
        assert 0 == state_of(store, as_of=datetime(2000, 1, 1, tzinfo=UTC)).version

    def test_another_fold_takes_the_originals(self, store):
        compact(store, 3)
        other = a_store(store.log, version=2)

        with structlog.testing.capture_logs() as logs:
            state = state_of(other)

        assert (15, 5) == (state.value.balance, state.version)
        assert ["made by another fold"] == reasons(logs)

    def test_a_damaged_one_is_replaced_by_the_originals(self, store):
        compact(store, 3)
        place = "default", STREAM
        store.log._folded[place] = store.log._folded[place]._replace(data=b'{"fold":1}')

        with structlog.testing.capture_logs() as logs:
            assert 15 == state_of(store).value.balance
        assert ["damaged"] == reasons(logs)

    def test_a_subject_forgotten_since_is_redacted_by_the_originals(self, store):
        store.handle(Open("a", "Ada"))
        compact(store, 6)
        assert "Ada" == state_of(store).value.owner
        assert b"Ada" not in next(store.read_stream(STREAM)).data

        store.codec.keyring.shred("default", "a")

        assert Redacted("a") == state_of(store).value.owner

    def test_a_beginning_that_is_gone_is_an_error_and_never_an_empty_state(self, store):
        compact(store, 5)
        other = a_store(store.log, version=2)
        archived = store.log._streams["default", STREAM]
        for left in ([], archived[3:]):
            store.log._streams["default", STREAM] = left

            with pytest.raises(CompactionError):
                state_of(other)

    def test_a_saved_state_from_before_is_overtaken(self, store):
        eager = a_store(store.log, snapshot_every=7, ring=store.codec.keyring)
        eager.handle(Deposit("a", 6, 2))
        compact(store, 7)
        assert 7 == saved(eager).stream_position
        eager.handle(Deposit("a", 1))

        assert (28, 8) == (state_of(eager).value.balance, state_of(eager).version)

    def test_its_first_event_stands_for_those_before(self, store):
        compact(store, 3)

        first, *rest = store.read_stream(STREAM)

        assert (CompactedPrefix(3), True) == (first.event, first.system)
        assert [4, 5] == [found.stream_position for found in rest]
        originals = store.read_stream(STREAM, StreamPart(archived=True))
        assert [1, 2, 3, 4, 5] == [found.event.amount for found in originals]

    def test_a_repeated_key_finds_its_events_in_the_archive(self, store):
        first = store.handle(Deposit("a", 9, 2), idempotency_key="k")
        compact(store, 6)

        second = store.handle(Deposit("a", 9, 2), idempotency_key="k")

        assert (first.events, True) == (second.events, second.repeated)
