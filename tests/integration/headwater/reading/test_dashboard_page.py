"""The page of a dashboard in a real browser: what it draws, that it follows, that it stays safe."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headwater.reading.dashboard.answers import Answers
from headwater.reading.dashboard.server import DashboardServer
from projections.definition.dashboard import Bars, Dashboard, Line, Number, Rows
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_browser import Browser

pytestmark = pytest.mark.integration

MINUTE = datetime(2026, 11, 24, 9, tzinfo=UTC)
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LARGE = 2**53 + 1
LARGE_AND_SMALL = f"SELECT * FROM (VALUES ('a', {LARGE}), ('b', {LARGE} / 4)) AS f(n, x)"  # noqa: S608
SHOP = Dashboard(
    "Shop & Söhne",
    (
        Line("Orders", "SELECT minute, orders, paid FROM orders ORDER BY minute"),
        Number("Latest", "SELECT orders, 10 FROM orders ORDER BY minute DESC LIMIT 1", unit="pcs"),
        Bars("By name", "SELECT name, orders FROM names ORDER BY orders DESC"),
        Rows("Names", "SELECT name, orders FROM names ORDER BY name"),
        Rows("Nobody", "SELECT name FROM names WHERE false"),
        Rows("Wrong", "SELECT name FROM no_such_view"),
        Bars(
            "Floats",
            "SELECT * FROM (VALUES ('a', 'Infinity'::double), ('b', 2), ('c', 1)) AS f(name, x)",
        ),
        Bars("Large", LARGE_AND_SMALL, unit="pcs"),
    ),
)
SECTION = "[...document.querySelectorAll('section')].find((each) => each.innerText.startsWith({}))"


class Warehouse:
    def __init__(self, tables: Path) -> None:
        self.tables, self.published, self.lsn = tables, Published(tables, "shop"), 0

    def write(self, view: str, **columns: Any) -> None:
        write_deltalake(str(self.tables / view), pa.table(columns), mode="append")

    def publish(self) -> None:
        self.lsn += 1
        there = ("orders", "names")
        versions = {view: DeltaTable(str(self.tables / view)).version() for view in there}
        assert self.published.publish(1, self.lsn, versions)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    made = Warehouse(tmp_path)
    minutes = [MINUTE + timedelta(minutes=number) for number in range(3)]
    made.write("orders", minute=minutes, orders=[4, 8, 6], paid=[1, 2, 3])
    made.write("names", name=["ordinary", EVIL], orders=[1_234, 5])
    made.publish()
    return made


@pytest.fixture
def page(warehouse: Warehouse, browser: Browser) -> Iterator[str]:
    with DashboardServer(Answers(SHOP, warehouse.tables, "shop"), "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.size(1300, 900)
        browser.open(server.url)
        browser.await_true("document.querySelectorAll('section').length === 8")
        yield server.url
        server.shutdown()
    browser.open("about:blank")
    browser.complaints()


def text(browser: Browser, title: str) -> str:
    found: str = browser.run(f"return {SECTION.format('arguments[0]')}.innerText", title)
    return found


@pytest.mark.usefixtures("page")
def test_each_panel_is_drawn_from_its_answer(browser: Browser) -> None:
    assert "Shop & Söhne" == browser.run("return document.title")
    assert browser.run("return document.querySelector('#state').innerText").startswith("as of ")
    assert ["6", "pcs"] == text(browser, "Latest").split()[1:3]
    assert "\N{MINUS SIGN}4 pcs from 10 pcs" in text(browser, "Latest")
    assert {"ordinary", "1,234"} <= set(text(browser, "By name").split())
    lines = browser.run(
        "return [...document.querySelectorAll('polyline')].map((e) => e.points.length)"
    )
    assert [3, 3] == lines
    label = browser.run("return document.querySelector('svg').getAttribute('aria-label')")
    assert "Orders: orders 6, paid 3 at" in label
    widths = browser.run(
        "return [...document.querySelectorAll('.bar')].map((e) => e.getBoundingClientRect().width)"
    )
    assert widths[0] > 100 * widths[1] > 0
    assert "nothing yet" in text(browser, "Nobody")
    assert "no view is named no_such_view" in text(browser, "Wrong")


@pytest.mark.usefixtures("page")
def test_a_bar_of_infinity_has_no_length_and_leaves_the_others_theirs(browser: Browser) -> None:
    bars = f"{SECTION.format(repr('Floats'))}.querySelectorAll('.bar')"
    widths = browser.run(f"return [...{bars}].map((each) => each.style.width)")

    assert ["0%", "100%", "50%"] == widths
    assert "Infinity" in text(browser, "Floats")


@pytest.mark.usefixtures("page")
def test_a_large_number_is_drawn_and_no_digit_of_it_is_rounded(browser: Browser) -> None:
    bars = f"{SECTION.format(repr('Large'))}.querySelectorAll('.bar')"
    widths = browser.run(f"return [...{bars}].map((each) => each.style.width)")

    assert ["100%", "25%"] == widths
    assert f"{LARGE} pcs" in text(browser, "Large")


@pytest.mark.usefixtures("page")
def test_values_of_rows_are_text_and_nothing_else_is_run_or_loaded(browser: Browser) -> None:
    assert EVIL in text(browser, "Names")
    assert 0 == browser.run("return document.querySelectorAll('main img, main script').length")
    loaded = browser.run("return performance.getEntriesByType('resource').map((e) => e.name)")
    own = browser.run("return location.origin")
    assert loaded
    assert [] == [each for each in loaded if not each.startswith(own)]
    assert [] == browser.complaints()


@pytest.mark.usefixtures("page")
def test_a_newer_boundary_is_drawn_and_what_has_not_changed_stays(
    browser: Browser, warehouse: Warehouse
) -> None:
    browser.run(f"window.before = {SECTION.format(repr('Names'))}.querySelector('table')")

    warehouse.write("orders", minute=[MINUTE + timedelta(minutes=3)], orders=[21], paid=[20])
    warehouse.publish()

    browser.await_true("document.querySelector('.value').innerText.startsWith('21')")
    browser.await_true("document.querySelector('polyline').points.length === 4")
    assert browser.run("return window.before.isConnected")


@pytest.mark.usefixtures("page")
def test_a_server_that_is_gone_is_told_and_the_page_comes_back(browser: Browser) -> None:
    browser.run("window.asked = window.fetch; window.fetch = () => Promise.reject(new Error('x'))")
    browser.await_true("document.querySelector('#state').className === 'lost'")
    told = browser.run("return document.querySelector('#state').innerText")

    browser.run("window.fetch = window.asked")

    assert told.startswith("no answer; as of")
    browser.await_true("document.querySelector('#state').className === ''")


@pytest.mark.usefixtures("page")
def test_a_phone_needs_no_sideways_scrolling(browser: Browser) -> None:
    browser.size(500, 800)  # the narrowest window that the browser makes

    browser.await_true("document.documentElement.clientWidth <= 500")
    wide = browser.run("return document.documentElement.scrollWidth")
    assert wide <= browser.run("return document.documentElement.clientWidth")


@pytest.mark.usefixtures("page")
def test_the_pointer_tells_the_point_it_is_on(browser: Browser) -> None:
    browser.run("""
        const chart = document.querySelector('svg'), box = chart.getBoundingClientRect();
        chart.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + box.width / 2 }));
    """)
    assert "orders 8" in browser.run("return document.querySelector('.legend').innerText")
    browser.run("document.querySelector('svg').dispatchEvent(new PointerEvent('pointerleave'))")
    assert "orders 6" in browser.run("return document.querySelector('.legend').innerText")
