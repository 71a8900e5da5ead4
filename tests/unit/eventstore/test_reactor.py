"""Reactors without a database: breaker and rate on a clock that the test moves, effects, order."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eventstore.errors import (
    DependencyAwayError,
    EffectRefusedError,
    NameRefusedError,
    SubscriptionError,
    WrongKindError,
)
from eventstore.memory import MemoryEventLog
from eventstore.process import Dispatch
from eventstore.reactor import (
    Breaker,
    BreakerPolicy,
    BreakerState,
    EffectRate,
    HttpPost,
    Invoke,
    Reactor,
)
from eventstore.reactor.dry_run import dry_run
from eventstore.reactor.limit import EffectLimit
from eventstore.subscription.retry import Failure, RetryPolicy
from tests.fix_reactor import ORDERS, Ordered, SendLetter, place, posting, store_on

POLICY = BreakerPolicy(failures_max=3, open_s=5, open_max_s=15)
AWAY = DependencyAwayError("away")


class Ticks:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


def test_failures_in_a_row_open_a_breaker_and_a_probe_closes_it(ticks):
    breaker = Breaker(POLICY, ticks)
    counted = [breaker.failed(AWAY) for _ in range(3)]
    opened = breaker.state, breaker.wait_s()
    ticks.now += 5
    probing = breaker.state, breaker.wait_s()
    breaker.succeeded()

    assert [True, True, False] == counted
    assert (BreakerState.OPEN, 5.0) == opened
    assert (BreakerState.HALF_OPEN, 0.0) == probing
    assert (BreakerState.CLOSED, 0.0, None) == (breaker.state, breaker.wait_s(), breaker.error)


def test_each_failed_probe_doubles_the_wait_up_to_its_bound(ticks):
    breaker = Breaker(POLICY, ticks)
    for _ in range(3):
        breaker.failed(AWAY)
    waits = []
    for _ in range(4):
        waits.append(breaker.wait_s())
        ticks.now += waits[-1]
        assert not breaker.failed(TimeoutError())

    assert [5, 10, 15, 15] == waits


def test_a_success_or_an_answer_between_failures_keeps_a_breaker_closed(ticks):
    breaker = Breaker(POLICY, ticks)
    for answer in (breaker.succeeded, lambda: breaker.failed(EffectRefusedError("no"))):
        for _ in range(2):
            breaker.failed(AWAY)
        answer()

    assert BreakerState.CLOSED == breaker.state


@pytest.mark.parametrize(
    "wrong",
    [
        {"failures_max": 0},
        {"failures_max": None},
        {"open_s": 0},
        {"open_s": 70},
        {"open_s": float("nan")},
        {"open_max_s": float("nan")},
        {"away": ()},
        {"away": [OSError]},
    ],
)
def test_a_policy_that_means_nothing_is_refused(wrong):
    with pytest.raises(SubscriptionError):
        BreakerPolicy(**wrong)


def test_a_rate_spaces_effects_by_the_part_that_a_process_has(ticks):
    rate = EffectRate(10, ticks)
    waits = []
    for share in (1.0, 0.5, 0.25):
        rate.share = share
        rate.took()
        waits.append(rate.wait_s())
        ticks.now += waits[-1]

    assert pytest.approx([0.1, 0.2, 0.4]) == waits
    assert 0 == rate.wait_s()


def test_an_event_with_several_effects_is_paid_for_afterwards(ticks):
    rate = EffectRate(10, ticks)
    for _ in range(5):
        rate.took()

    assert pytest.approx(0.5) == rate.wait_s()


def reactor(**options) -> Reactor:
    given = {"name": "letters", "react": posting("http://127.0.0.1:1/"), "query": ORDERS}
    return Reactor(**{**given, **options})


def test_a_batch_ends_with_as_many_events_as_the_reactor_says(ticks):
    limit = EffectLimit(reactor(batch_size=3, breaker=POLICY), ticks)
    open_ = [limit.full(count) for count in (0, 2, 3)]
    for _ in range(3):
        limit.failed(AWAY)
    away = [limit.full(0), limit.held_now()]
    ticks.now += 5
    probing = [limit.full(0), limit.full(1), limit.held_now()]
    limit.succeeded()

    assert [False, False, True] == open_
    assert [True, True] == away
    assert [False, True, False] == probing
    assert not limit.full(1)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"name": "no name"}, NameRefusedError),
        ({"react": None}, WrongKindError),
        ({"batch_size": 0}, SubscriptionError),
        ({"batch_size": None}, SubscriptionError),
        ({"rate_per_s": 0}, SubscriptionError),
        ({"rate_per_s": float("nan")}, SubscriptionError),
        ({"rate_per_s": "10"}, SubscriptionError),
        ({"retry": 3}, WrongKindError),
        ({"breaker": 5}, WrongKindError),
        ({"partitions": 0}, SubscriptionError),
        ({"retry": RetryPolicy(attempts_max=3)}, SubscriptionError),
    ],
)
def test_a_reactor_that_cannot_run_is_refused(wrong, error):
    with pytest.raises(error):
        reactor(**wrong)


def test_an_async_react_is_refused():
    async def react(_):
        return None

    with pytest.raises(WrongKindError, match="react of reactor letters"):
        reactor(react=react)


@pytest.mark.parametrize("returned", ["a text", HttpPost, object(), 4])
def test_what_is_no_effect_is_refused(returned):
    made = reactor(react=lambda _: [returned])

    with pytest.raises(SubscriptionError, match="not an effect"):
        made.effects(None)


@pytest.mark.parametrize(
    ("returned", "count"),
    [(None, 0), ([], 0), (Invoke(print), 1), ((Invoke(print), Dispatch(1)), 2)],
)
def test_a_reactor_returns_one_effect_several_or_none(returned, count):
    assert count == len(reactor(react=lambda _: returned).effects(None))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/",
        "https://",
        "http://ada:secret@host/",
        "host",
        "http://[::1/",
        "http://h:99999/",
        "http://h/a b",
    ],
)
def test_a_url_that_cannot_be_posted_to_is_refused_without_being_shown(url):
    with pytest.raises(SubscriptionError) as caught:
        HttpPost(url=url)

    assert "secret" not in f"{caught.value} {caught.value.detail} {caught.value.hint}"


def test_a_post_has_its_key_and_its_signature(receiver):
    from projections.alerting.signature import signed, verify

    seen = {}
    receiver.take_ = receiver.take

    def take(request, key, document):
        seen.update(request.headers)
        receiver.take_(request, key, document)

    receiver.take = take
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    post = HttpPost(
        url=receiver.url + "?a=b",
        body={"order": "1", "number": 2},
        headers={"Authorization": "Bearer x"},
        sign=lambda key, body: signed(key, body, secret),
    )
    post.perform("letters:1:1")

    assert [("letters:1:1", {"order": "1", "number": 2})] == receiver.came
    assert ("letters:1:1", "Bearer x") == (seen["Idempotency-Key"], seen["Authorization"])
    assert "letters:1:1" == verify(seen, b'{"order":"1","number":2}', secret)
    assert "Bearer" not in repr(post)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        *((status, DependencyAwayError) for status in (408, 425, 429, 500, 503)),
        *((status, EffectRefusedError) for status in (301, 400, 401, 404, 409, 422)),
    ],
)
def test_an_answer_says_whether_to_try_again(receiver, status, error):
    receiver.status = status
    with pytest.raises(error) as caught:
        HttpPost(url=receiver.url, body={"order": "1", "number": 2}).perform("k")

    assert f"HTTP {status}" == caught.value.detail
    assert [] == receiver.came


def test_a_receiver_that_is_not_there_is_away():
    with pytest.raises(DependencyAwayError, match=r"127\.0\.0\.1 does not answer"):
        HttpPost(url="http://127.0.0.1:1/").perform("k")


def test_a_failure_during_an_outage_never_ends_the_attempts():
    policy = RetryPolicy(attempts_max=2, jitter=0)
    failure = Failure.of(EffectRefusedError("no"), 2, policy)
    outage = failure.during_outage()

    assert failure.wait_s(policy) is None
    assert (1, 0.2, False) == (outage.attempts, outage.wait_s(policy), outage.permanent)


def test_a_dry_run_needs_no_database():
    store = store_on(MemoryEventLog())
    place(store, 3)
    store.append("order-0", [Ordered("0", 3)])
    made = reactor(react=lambda recorded: Dispatch(SendLetter(recorded.event.order, 1)))

    planned = list(dry_run(store, made))

    assert ["dispatch SendLetter"] * 4 == [one.effect for one in planned]
    assert 4 == len({one.key for one in planned})
    assert [] == list(store.read_category("letter"))


class Delivering(RuleBasedStateMachine):
    """A dependency comes and goes; some events it never takes. The runner's rules, in memory.

    Streams have queues as `parked_events` has them; `EffectLimit` decides what may be delivered.
    """

    ATTEMPTS = 4

    def __init__(self) -> None:
        super().__init__()
        self.ticks = Ticks()
        self.policy = RetryPolicy(attempts_max=self.ATTEMPTS, jitter=0, wait_max_s=2)
        breaker = BreakerPolicy(failures_max=3, open_s=2, open_max_s=8)
        self.limit = EffectLimit(reactor(breaker=breaker, retry=self.policy), self.ticks)
        self.log: deque[tuple[int, int]] = deque()
        self.waiting: dict[int, deque[int]] = defaultdict(deque)
        self.attempts: dict[int, int] = {}
        self.due: dict[int, float] = {}
        self.parked: set[int] = set()
        self.taken: dict[int, list[int]] = defaultdict(list)
        self.appended: dict[int, list[int]] = defaultdict(list)
        self.poison: set[tuple[int, int]] = set()
        self.away = False
        self.outages = 0
        self.repaired = False
        self.number = 0

    @rule(stream=st.integers(0, 5), poison=st.sampled_from([False] * 9 + [True]))
    def append(self, stream, poison):
        self.number += 1
        self.log.append((stream, self.number))
        self.appended[stream].append(self.number)
        if poison:
            self.poison.add((stream, self.number))

    @rule(away=st.booleans())
    def dependency(self, away):
        self.outages += away and not self.away
        self.away = away

    @rule(turns=st.integers(5, 40))
    def outage(self, turns):
        self.dependency(away=True)
        for _ in range(turns):
            self.passes(3)
            self.turn()

    @rule(seconds=st.floats(0.1, 10))
    def passes(self, seconds):
        self.ticks.now += seconds

    @rule()
    def turn(self):
        """One batch of one event, then what is due, as `Serving` does."""
        if self.limit.held_now():
            return
        if self.log:
            stream, number = self.log.popleft()
            if self.waiting[stream]:
                self.waiting[stream].append(number)
            elif (failure := self._call(stream, number, 1)) is not None:
                self.waiting[stream].append(number)
                self._failed(stream, failure)
        due = sorted(self.due, key=lambda one: self.due[one])
        for stream in [one for one in due if self.due[one] <= self.ticks.now]:
            while self.waiting[stream] and not self.limit.held_now():
                number = self.waiting[stream][0]
                failure = self._call(stream, number, self.attempts.get(stream, 0) + 1)
                if failure is not None:
                    self._failed(stream, failure)
                    break
                self.waiting[stream].popleft()
                self.attempts.pop(stream, None)
                if not self.waiting[stream]:
                    self.due.pop(stream)

    @precondition(lambda self: self.parked)
    @rule()
    def repair_and_retry(self):
        stream = min(self.parked)
        self.poison.discard((stream, self.waiting[stream][0]))
        self.repaired = True
        self.parked.discard(stream)
        self.attempts[stream] = 0
        self.due[stream] = self.ticks.now

    def _call(self, stream, number, attempt):
        if self.away:
            failure = Failure.of(AWAY, attempt, self.policy)
            return failure if self.limit.failed(AWAY) else failure.during_outage()
        if (stream, number) in self.poison:
            error = ValueError("poison")
            self.limit.failed(error)
            return Failure.of(error, attempt, self.policy)
        self.limit.succeeded()
        self.taken[stream].append(number)
        return None

    def _failed(self, stream, failure):
        wait_s = failure.wait_s(self.policy)
        self.attempts[stream] = failure.attempts
        self.due.pop(stream, None)
        if wait_s is None:
            self.parked.add(stream)
        else:
            self.due[stream] = self.ticks.now + wait_s

    @invariant()
    def each_stream_is_taken_in_order_without_a_gap(self):
        for stream, numbers in self.taken.items():
            assert numbers == self.appended[stream][: len(numbers)]

    @invariant()
    def one_outage_however_long_parks_nothing(self):
        if self.outages <= 1 and not self.poison and not self.repaired:
            assert set() == self.parked

    @invariant()
    def a_waiting_stream_is_due_or_parked(self):
        for stream, numbers in self.waiting.items():
            assert bool(numbers) == (stream in self.due or stream in self.parked)

    def teardown(self):
        """Once the dependency is back and poison is repaired, all is taken."""
        self.away = False
        for _ in range(400):
            self.ticks.now += 10
            self.turn()
            while self.parked:
                self.repair_and_retry()
        assert {s: n for s, n in self.appended.items() if n} == {
            s: n for s, n in self.taken.items() if n
        }


TestDelivering = Delivering.TestCase
