"""GlobalShop's live page: what each panel shows is what plain SQL over the shop's tables says."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from rich.console import Console

from cdc.broker.client.admin import consumer
from headwater.demo.demo import run_demo
from headwater.demo.globalshop import GlobalShopLive
from headwater.demo.options import DemoOptions
from headwater.reading import sql as reading_sql
from headwater.reading.dashboard.answers import Answers
from headwater.reading.dashboard.server import DashboardServer
from projections.alerting import tables as alerting_tables
from projections.definition.registry import load
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from headwater.demo.reader import ViewEndpoints
    from tests.fix_browser import Browser

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=6),
    pytest.mark.timeout(2400),
]

BY_PLAIN_SQL = {
    "Orders per minute": """
        WITH m AS (SELECT date_trunc('minute', placed_at) AS at, count(*) AS n FROM orders
                    WHERE status <> 'cancelled' GROUP BY 1)
        SELECT at, n FROM m WHERE at < (SELECT max(at) FROM m)
           AND at > (SELECT max(at) FROM m) - INTERVAL '1 hour' ORDER BY at
    """,
    "Orders of this minute": """
        SELECT count(*) FROM orders WHERE status <> 'cancelled'
           AND placed_at >= (SELECT max(date_trunc('minute', placed_at)) FROM orders
                              WHERE status <> 'cancelled')
    """,
    "Revenue of the last whole minute": """
        WITH m AS (SELECT date_trunc('minute', placed_at) AS at, sum(total) AS total FROM orders
                    WHERE status <> 'cancelled' GROUP BY 1 ORDER BY 1 DESC LIMIT 3)
        SELECT max(CASE WHEN at < (SELECT max(at) FROM m) AND at > (SELECT min(at) FROM m)
                        THEN total END),
               max(CASE WHEN at = (SELECT min(at) FROM m) THEN total END) FROM m
    """,
    "Revenue by region": """
        SELECT CASE WHEN preferences LIKE '%"language": "de"%' THEN 'Europe'
                    WHEN preferences LIKE '%"language": "ja"%' THEN 'Japan'
                    WHEN preferences LIKE '%"language": "pt-BR"%' THEN 'Brazil'
                    ELSE 'elsewhere' END AS region, sum(total)
          FROM orders JOIN customers ON customers.id = customer_id
         WHERE status <> 'cancelled' GROUP BY 1 ORDER BY 2 DESC
    """,
    "Click-through rate": """
        WITH s AS (SELECT date_trunc('minute', searched_at) AS at, id FROM searches),
             m AS (SELECT at, 100.0 * count(DISTINCT c.search_id) / count(DISTINCT s.id) AS share
                     FROM s LEFT JOIN clicks c ON c.search_id = s.id GROUP BY at)
        SELECT at, share FROM m WHERE at < (SELECT max(at) FROM m) ORDER BY at
    """,
    "Low stock": """
        SELECT p.name, p.sku, sum(on_hand) FROM products p JOIN inventory i ON i.sku = p.sku
         WHERE active GROUP BY p.name, p.sku HAVING sum(on_hand) < 300 ORDER BY 3, 2
    """,
}
PAYMENTS = """
    SELECT p.paid_at, o.placed_at, p.amount, o.customer_id, c.full_name
      FROM payments p JOIN orders o ON o.id = p.order_id JOIN customers c ON c.id = o.customer_id
     ORDER BY p.paid_at
"""
PANELS = {*BY_PLAIN_SQL, "From order to payment", "Suspected fraud"}
ALERTS = {"stock_low": "low_stock", "suspected_fraud": "suspects"}

RARE = {"Low stock", "Suspected fraud"}
"""What a short run may not come to: a new product has to be launched, and be sold."""


@dataclass(slots=True)
class Shop:
    """What is left of a run.

    Attributes:
        tables: Folder of the views' tables.
        opened: By alert, how many rows stood at the end.
        told: By topic, of how many rows somebody was told.
    """

    tables: Path
    opened: Mapping[str, int] = field(default_factory=dict)
    told: Mapping[str, int] = field(default_factory=dict)

    def answers(self) -> Answers:
        declared = load(GlobalShopLive.settings_file.parent / "views.py").dashboard
        assert declared is not None
        return Answers(declared, self.tables, "shop")

    def rows(self, sql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = reading_sql.run(sql, self.tables).to_pylist()
        return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop that has been open for a while, and that nothing happens in any more.

    The job is killed meanwhile, amid windows, joins in time and a pattern.
    """
    home = tmp_path_factory.mktemp("live") / ".headwater"
    # long enough for a whole minute between two that are not
    options = DemoOptions(
        "globalshop-live", seconds=75.0, rate=60.0, scale=0.2, home=home, chaos=("spark",)
    )
    found = Shop(home / "tables")

    def look(stack: Any, places: ViewEndpoints) -> None:
        del places
        stack.views.verify()  # views made from others have come to the end, too
        found.opened, found.told = told(stack, found)

    result = run_demo(options, Console(file=io.StringIO()), before_comparison=look)

    assert result.verified
    assert ["spark"] == [recovery.killed for recovery in result.recoveries]
    return found


def told(stack: Any, shop: Shop) -> tuple[Counter[str], Counter[str]]:
    """How many rows stand, and of how many the topics have a message, once both are so."""
    there = {
        alert: shop.rows(f"SELECT count(*) AS n FROM {view}")[0]["n"]  # noqa: S608  # names above
        for alert, view in ALERTS.items()
    }
    wanted = Counter({alert: rows for alert, rows in there.items() if rows})
    stands: Counter[str] = Counter()
    with psycopg.connect(stack.source_dsn, autocommit=True) as connection:

        def settled() -> bool:
            waiting = alerting_tables.pending_messages(connection, "shop")
            stands.clear()
            stands.update(
                each.alert
                for each in alerting_tables.row_states(connection, "shop")
                if each.state == "open"
            )
            return stands == wanted and not waiting

        wait_until(
            settled,
            timeout_s=LONG_S,
            what=lambda: str(alerting_tables.pending_messages(connection, "shop")),
        )
    topics = [f"globalshop.{alert}" for alert in wanted]
    taken: dict[str, dict[str, str]] = {topic: {} for topic in topics}

    def heard() -> bool:
        for records in client.poll(500).values():
            for record in records:
                message = json.loads(record.value)
                taken[record.topic][json.dumps(message["key"])] = message["event"]
        return spoken() == wanted

    def spoken() -> Counter[str]:
        last = ((topic.partition(".")[2], keys.values()) for topic, keys in taken.items())
        return Counter({alert: list(events).count("opened") for alert, events in last})

    with consumer(stack.endpoints.kafka_bootstrap) as client:
        if topics:
            client.subscribe(topics)
            wait_until(heard, timeout_s=LONG_S)
    return stands, spoken()


def test_the_live_page_shows_what_the_shop_has_done(shop: Shop) -> None:
    shown = json.loads(shop.answers().newest().body)
    panels = {panel["title"]: panel for panel in shown["panels"]}
    assert [] == [title for title, panel in panels.items() if "error" in panel]
    assert PANELS == panels.keys()
    for title, sql in BY_PLAIN_SQL.items():
        expected = [plain(row) for row in shop.rows(sql)]
        assert expected or title in RARE, title
        assert expected == rounded_rows(panels[title]), title


def test_delays_and_suspects_are_what_plain_python_makes_of_the_payments(shop: Shop) -> None:
    shown = json.loads(shop.answers().newest().body)
    panels = {panel["title"]: panel for panel in shown["panels"]}
    payments = shop.rows(PAYMENTS)

    assert delays(payments)
    assert delays(payments) == rounded_rows(panels["From order to payment"])
    found = suspected(payments)
    assert len(found) == panels["Suspected fraud"]["count"]
    assert found == [row[:2] for row in panels["Suspected fraud"]["rows"]]


def test_each_row_of_an_alert_is_told_to_its_topic(shop: Shop) -> None:
    assert shop.opened == shop.told


def test_a_person_sees_the_page(shop: Shop, browser: Browser) -> None:
    answers = shop.answers()
    (orders,) = shop.rows(BY_PLAIN_SQL["Orders of this minute"])
    (richest, *_) = shop.rows(BY_PLAIN_SQL["Revenue by region"])
    with served(answers) as url:
        browser.size(1300, 900)
        browser.open(url)
        browser.await_true(f"document.querySelectorAll('section').length === {len(PANELS)}")
        seen = {
            text.split("\n")[0]: text
            for text in browser.run(
                "return [...document.querySelectorAll('section')].map((each) => each.innerText)"
            )
        }
        lines = browser.run("return document.querySelectorAll('section svg polyline').length")
        title = browser.run("return document.title")
        said = browser.run("return document.querySelector('#state').innerText")
        complaints = browser.complaints()
        browser.open("about:blank")

    assert ("GlobalShop", []) == (title, complaints)
    assert said.startswith("as of ")
    assert PANELS == seen.keys()
    number = next(iter(orders.values()))
    assert f"{number:,}" in seen["Orders of this minute"]
    assert richest["region"] in seen["Revenue by region"]
    assert lines >= 4  # two of one chart


@contextmanager
def served(answers: Answers) -> Iterator[str]:
    with DashboardServer(answers, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


def delays(payments: list[dict[str, Any]]) -> list[list[Any]]:
    """Per whole minute of the last hour, the 95th percentile of seconds waited, and the median."""
    minutes: dict[datetime, list[float]] = defaultdict(list)
    for each in payments:
        waited_s = (each["paid_at"] - each["placed_at"]).total_seconds()
        if waited_s < 86400:
            minutes[each["paid_at"].replace(second=0, microsecond=0)].append(waited_s)
    newest = max(minutes)
    return [
        [utc(at), percentile(minutes[at], 0.95), percentile(minutes[at], 0.5)]
        for at in sorted(minutes)
        if newest - timedelta(hours=1) < at < newest
    ]


def percentile(values: list[float], share: float) -> float:
    ordered, place = sorted(values), share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return round(ordered[low] + (place - low) * (ordered[high] - ordered[low]), 6)


def suspected(payments: list[dict[str, Any]]) -> list[list[Any]]:
    """When, and whose, three payments within three minutes each were larger than the last."""
    people: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for each in payments:
        people[each["customer_id"]].append(each)
    found = []
    for customer, own in people.items():
        first = 0
        while first < len(own):
            taken = [first]
            for place in range(first + 1, len(own)):
                soon = own[place]["paid_at"] - own[first]["paid_at"] <= timedelta(minutes=3)
                if len(taken) < 3 and soon and own[place]["amount"] > own[taken[-1]]["amount"]:
                    taken.append(place)
            if len(taken) == 3:
                last = own[taken[-1]]
                found.append((last["paid_at"], str(customer), last["full_name"]))
            first = taken[-1] + 1 if len(taken) == 3 else first + 1
    found.sort(key=lambda each: (-each[0].timestamp(), each[1]))
    return [[utc(at), name] for at, _, name in found]


def utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()


def rounded_rows(panel: dict[str, Any]) -> list[list[Any]]:
    return [[rounded(each) for each in row] for row in panel["rows"]]


def plain(row: dict[str, Any]) -> list[Any]:
    return [rounded(each) for each in row.values()]


def rounded(value: Any) -> Any:
    """As JSON has it; two engines divide with another last digit."""
    if isinstance(value, float | Decimal):
        return round(float(value), 6)
    return value.isoformat() if hasattr(value, "isoformat") else value
