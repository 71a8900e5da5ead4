"""Commands of threads to one stream run one after the other, and never wait for ever."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore import EventStore
from eventstore.memory import MemoryEventLog
from eventstore.planning.stream_locks import StreamLocks
from tests.fix_account import Deposit, Overdrawn, Withdraw, account, types

if TYPE_CHECKING:
    from collections.abc import Callable

OVERLAP_S = 0.02
"""So long a command lets another one read its stream; nothing reads it where they wait."""


class OverlappingLog(MemoryEventLog):
    """An append lets a command that decides at the same time read the stream before it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._reads: dict[str, threading.Event] = {}

    def read_stream(self, tenant: str, stream: str, *args: Any, **options: Any) -> Any:
        with self._counting:
            self.calls["read_stream"] += 1
            self._reads.setdefault(stream, threading.Event()).set()
        return super().read_stream(tenant, stream, *args, **options)

    def append(self, request: Any, *args: Any, **options: Any) -> Any:
        (part,) = request.appends
        with self._counting:
            self.calls["append"] += 1
            another = self._reads[part.stream] = threading.Event()
        another.wait(OVERLAP_S)
        return super().append(request, *args, **options)


def in_threads(commands: list[Callable[[], Any]]) -> list[Any]:
    """What each returns or raises, all of them at once."""
    with ThreadPoolExecutor(max_workers=max(1, len(commands))) as pool:
        running = [pool.submit(command) for command in commands]
        return [one.exception(30) or one.result() for one in running]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=16))
def test_concurrent_commands_to_one_stream_need_one_attempt_each(streams: list[str]) -> None:
    log = OverlappingLog()
    store = EventStore(log, types=types, deciders=[account()])

    done = in_threads([lambda s=stream: store.handle(Deposit(s, 1)) for stream in streams])

    versions = sorted((stream, one.version) for stream, one in zip(streams, done, strict=True))
    expected = [(s, n) for s, count in Counter(streams).items() for n in range(1, count + 1)]
    assert sorted(expected) == versions
    assert Counter(read_stream=len(streams), append=len(streams)) == log.calls
    assert not store._runner._stream_locks._last


def test_a_refused_command_lets_the_next_go_on() -> None:
    store = EventStore(OverlappingLog(), types=types, deciders=[account()])
    store.handle(Deposit("a", 3))

    with pytest.raises(Overdrawn):
        store.handle(Withdraw("a", 9))

    assert 2 == store.handle(Deposit("a", 1)).version
    assert not store._runner._stream_locks._last


def test_a_holder_that_is_not_done_in_time_lets_the_next_one_go_on() -> None:
    locks, first_holds = StreamLocks(held_s_max=0.01), threading.Event()
    second_done, order = threading.Event(), []

    def first() -> None:
        with locks.holding("t", "s"):
            first_holds.set()
            assert second_done.wait(30)
            order.append("first")

    def second() -> None:
        assert first_holds.wait(30)
        with locks.holding("t", "s"):
            order.append("second")
        second_done.set()

    assert [None, None] == in_threads([first, second])
    assert ["second", "first"] == order
    assert not locks._last


def test_a_late_holder_does_not_release_the_lock_of_the_next_one() -> None:
    locks, order = StreamLocks(held_s_max=0.01), []
    late_holds, holds, late_done, third_came = (threading.Event() for _ in range(4))

    def late() -> None:
        with locks.holding("t", "s"):
            late_holds.set()
            assert holds.wait(30)
        late_done.set()

    def second() -> None:
        assert late_holds.wait(30)
        with locks.holding("t", "s"):
            locks._held_s_max = 60  # what the third waits for this one
            holds.set()
            assert late_done.wait(30)
            assert third_came.wait(30)
            order.append("second")

    def third() -> None:
        assert holds.wait(30)
        third_came.set()
        with locks.holding("t", "s"):
            order.append("third")

    assert [None, None, None] == in_threads([late, second, third])
    assert ["second", "third"] == order
    assert not locks._last


@pytest.mark.parametrize(("tenant", "stream"), [("t", "other"), ("other", "s")])
def test_other_streams_and_other_tenants_do_not_wait(tenant: str, stream: str) -> None:
    locks = StreamLocks(held_s_max=3600)

    with ExitStack() as held:
        held.enter_context(locks.holding("t", "s"))
        held.enter_context(locks.holding(tenant, stream))
        assert 2 == len(locks._last)
