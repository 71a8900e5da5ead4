"""A view's own tables, made anew beside them and exchanged at one moment."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest

from eventstore.errors import SubscriptionError
from eventstore.model.query import EVERYTHING
from eventstore.subscription import AsyncSubscription, RetryPolicy, Start, Subscription
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.rebuild import async_rebuild, rebuild
from eventstore.subscription.runner import SubscriptionRunner
from tests.fix_subscription import Ledger
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

COUNTS = "CREATE TABLE counts (stream text PRIMARY KEY, events bigint NOT NULL, last jsonb)"
ADD = (
    "INSERT INTO counts AS c VALUES (%s, %s, '{}') ON CONFLICT (stream)"
    " DO UPDATE SET events = c.events + excluded.events"
)


class Counts:
    """Counts events by stream; a replay would double it."""

    name = "counts"
    query = EVERYTHING
    tables = ("counts",)

    def __init__(self, weight: int = 1, into: str = "counts") -> None:
        self.weight = weight
        self.asked = ADD.replace("INTO counts", f"INTO {into}")

    def apply(self, stored, connection) -> None:
        connection.execute(self.asked, (stored.stream, self.weight))


class AsyncCounts(Counts):
    async def apply(self, stored, connection) -> None:  # type: ignore[override]
        await connection.execute(self.asked, (stored.stream, self.weight))


@pytest.fixture
def counts(ledger: Ledger) -> Ledger:
    ledger.connection.execute(COUNTS)
    return ledger


def run(ledger: Ledger, subscription: Subscription) -> None:
    with SubscriptionRunner(ledger.dsn, subscription) as runner:
        runner.wait_for(ledger.token(), 30)


def logged(ledger: Ledger) -> dict[str, int]:
    return dict(ledger.query("SELECT stream, count(*) FROM eventstore.log GROUP BY stream"))


def shown(ledger: Ledger) -> dict[str, int]:
    return dict(ledger.query("SELECT stream, events FROM counts"))


def test_a_rebuild_makes_the_table_as_the_repaired_handler_would_have(counts):
    counts.fill(300)
    run(counts, Subscription.of(Counts(weight=2)))
    wrong = shown(counts)
    counts.connection.execute("INSERT INTO counts VALUES ('nobody', 1)")
    place = counts.position("counts")

    done = rebuild(counts.dsn, Subscription.of(Counts()))

    assert wrong != shown(counts) == logged(counts)
    assert (300, 8, 7) == (done.events, done.removed, done.added)
    assert place == counts.position("counts")
    counts.fill(50)
    run(counts, Subscription.of(Counts()))
    assert logged(counts) == shown(counts)


def test_a_rebuild_of_a_right_table_changes_no_row(counts):
    counts.fill(100)
    run(counts, Subscription.of(Counts()))
    rows = "SELECT ctid::text, xmin::text FROM counts ORDER BY stream"
    before = counts.query(rows)
    done = rebuild(counts.dsn, Subscription.of(Counts()))

    assert (0, 0) == (done.removed, done.added)
    assert before == counts.query(rows)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_rebuild_under_a_running_view_counts_each_event_once(counts, partitions):
    """Writers, runners and rebuilds at once; a reader never sees a half or an empty table."""
    counts.fill(2_500, streams=20)
    seen: list[int] = []
    over = threading.Event()

    def read() -> None:
        with psycopg.connect(counts.dsn, autocommit=True) as mine:
            while not over.is_set():
                row = mine.execute("SELECT sum(events)::bigint FROM counts").fetchone()
                seen.append(0 if row is None or row[0] is None else row[0])

    subscription = Subscription.of(Counts(), partitions=partitions, batch_size=50)
    with SubscriptionRunner(counts.dsn, subscription) as runner:
        runner.wait_for(counts.token(), 60)
        reader = threading.Thread(target=read)
        reader.start()
        writer = threading.Thread(target=lambda: Ledger.fill(counts, 400, streams=20))
        writer.start()
        for _ in range(3):
            rebuild(counts.dsn, subscription)
        writer.join(60)
        runner.wait_for(counts.token(), 60)
        over.set()
        reader.join(60)

    assert logged(counts) == shown(counts)
    assert seen == sorted(seen)
    assert seen[0] >= 2_500


def test_partitions_that_are_at_different_places_are_rebuilt_each_to_its_own(counts):
    counts.fill(200)
    run(counts, Subscription.of(Counts(), partitions=4))
    counts.connection.execute("DELETE FROM counts")
    counts.connection.execute(
        "UPDATE eventstore.subscriptions SET global_position = 40 * (partition + 1)"
    )
    rebuild(counts.dsn, Subscription.of(Counts(), partitions=4))
    run(counts, Subscription.of(Counts(), partitions=4))

    assert logged(counts) == shown(counts)


def test_effects_are_silent_in_a_rebuild(counts):
    acted: list[str] = []

    def handler(stored, delivery):
        delivery.effect(acted.append)
        delivery.connection.execute(Counts().asked, (stored.stream, 1))

    subscription = Subscription(name="counts", handler=handler, tables=("counts",))
    counts.fill(30)
    run(counts, subscription)
    assert 30 == len(acted)
    rebuild(counts.dsn, subscription)

    assert 30 == len(acted)


def test_a_replay_of_a_view_with_tables_is_refused(counts):
    counts.fill(30)
    run(counts, Subscription.of(Counts()))
    with (
        Subscriptions(counts.dsn) as subscriptions,
        pytest.raises(SubscriptionError, match="apply events to them twice") as refused,
    ):
        subscriptions.replay("counts", 0)

    assert "headwater events rebuild counts" in (refused.value.hint or "")
    assert logged(counts) == shown(counts)
    run(counts, Subscription.of(Counts(), tables=()))
    with Subscriptions(counts.dsn) as subscriptions:
        subscriptions.replay("counts", 0)


@pytest.mark.parametrize("into", ["public.counts", "others"])
def test_a_handler_that_writes_elsewhere_is_refused_and_nothing_is_changed(counts, into):
    counts.connection.execute("CREATE TABLE others (LIKE counts INCLUDING ALL)")
    counts.fill(30)
    run(counts, Subscription.of(Counts()))
    with pytest.raises(SubscriptionError, match="rebuild does not replace"):
        rebuild(counts.dsn, Subscription.of(Counts(into=into)))

    assert logged(counts) == shown(counts)
    assert [0] == counts.query("SELECT count(*) FROM others")


def test_a_handler_that_fails_leaves_the_table_as_it_was(counts):
    class Broken(Counts):
        def apply(self, stored, connection):
            super().apply(stored, connection)
            if stored.global_position == 20:
                raise KeyError("no such")

    counts.fill(30)
    run(counts, Subscription.of(Counts()))
    with pytest.raises(KeyError):
        rebuild(counts.dsn, Subscription.of(Broken()))

    assert logged(counts) == shown(counts)


def test_parked_streams_are_to_be_retried_first(counts):
    class Broken(Counts):
        def apply(self, stored, connection):
            super().apply(stored, connection)
            raise KeyError("no such")

    counts.fill(3)
    retry = RetryPolicy(attempts_max=1)
    with SubscriptionRunner(counts.dsn, Subscription.of(Broken(), retry=retry)):
        wait_until(lambda: counts.query("SELECT count(*) FROM eventstore.parked_events") == [3])
    with pytest.raises(SubscriptionError, match="has parked streams") as refused:
        rebuild(counts.dsn, Subscription.of(Counts()))

    assert "parked retry counts --all" in (refused.value.hint or "")


def test_what_cannot_be_rebuilt_is_refused(counts):
    counts.fill(3)
    run(counts, Subscription.of(Counts()))
    counts.connection.execute("CREATE TABLE bare (a text)")
    counts.connection.execute("CREATE VIEW seen AS SELECT 1 AS a")

    def refusal(**options) -> str:
        with pytest.raises(SubscriptionError) as refused:
            rebuild(counts.dsn, Subscription.of(Counts(), **options))
        return f"{refused.value} {refused.value.detail}"

    assert "names no table" in refusal(tables=())
    assert "there is none" in refusal(tables=("missing",))
    assert "no primary key" in refusal(tables=("bare",))
    assert "no ordinary table" in refusal(tables=("seen",))
    assert "not recorded" in refusal(start=Start.END)
    other = Subscription(name="other", handler=lambda *_: None, tables=("counts",))
    with pytest.raises(SubscriptionError, match="no subscription other"):
        rebuild(counts.dsn, other)
    with pytest.raises(SubscriptionError, match="tuple of distinct names"):
        Subscription.of(Counts(), tables=["counts"])


def test_a_view_with_an_async_apply_is_rebuilt(counts):
    counts.fill(120)
    run(counts, Subscription.of(Counts(weight=3)))
    done = asyncio.run(async_rebuild(counts.dsn, AsyncSubscription.of(AsyncCounts())))

    assert 120 == done.events
    assert logged(counts) == shown(counts)
