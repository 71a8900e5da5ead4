"""A dashboard's panels are answered from one boundary, and served to nobody but whom it is for."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headwater.cli import main
from headwater.reading.dashboard.answers import ROWS_MAX, Answers
from headwater.reading.dashboard.server import DashboardPortError, DashboardServer
from projections.definition.dashboard import Bars, Dashboard, Line, Number, Rows
from projections.definition.registry import load
from projections.errors import DeclarationError
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOP = Dashboard(
    "Shop",
    (
        Number("Orders", "SELECT count(*) FROM orders"),
        Bars("Sums", "SELECT id, total FROM orders ORDER BY id", unit="EUR"),
        Line("Nowhere", "SELECT * FROM nothing"),
        Rows("Both", "SELECT o.id, s.total FROM orders o JOIN sums s ON s.orders = o.id"),
        Rows("Written", "DELETE FROM orders"),
    ),
)


VIEWS = ("orders", "sums", "ends")


class Warehouse:
    """Two views' tables, and what is published of them."""

    def __init__(self, tables: Path) -> None:
        self.tables = tables
        self.published = Published(tables, "shop")
        self.lsn = 0

    def write(self, view: str, **columns: Any) -> None:
        write_deltalake(str(self.tables / view), pa.table(columns), mode="append")

    def publish(self) -> None:
        self.lsn += 1
        versions = {
            view: DeltaTable(str(self.tables / view)).version() for view in ("orders", "sums")
        }
        assert self.published.publish(1, self.lsn, versions)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    made = Warehouse(tmp_path)
    made.write("orders", id=[1, 2], total=[Decimal("2.50"), Decimal("40.00")])
    made.write("sums", orders=[2], total=[Decimal("42.50")])
    made.publish()
    return made


@pytest.fixture
def server(warehouse: Warehouse) -> Iterator[DashboardServer]:
    with DashboardServer(Answers(SHOP, warehouse.tables, "shop"), "127.0.0.1", 0) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def told(answers: Answers) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answers.newest().body)
    return {panel["title"]: panel for panel in found["panels"]}


def ask(
    server: DashboardServer, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_panels_are_answered_and_a_wrong_one_says_why(warehouse: Warehouse) -> None:
    panels = told(Answers(SHOP, warehouse.tables, "shop"))

    assert [[2]] == panels["Orders"]["rows"]
    assert ([[1, 2.5], [2, 40.0]], "EUR") == (panels["Sums"]["rows"], panels["Sums"]["unit"])
    assert [[2, 42.5]] == panels["Both"]["rows"]
    assert "HW-Q001" == panels["Nowhere"]["error"]["code"]
    assert "HW-Q002" == panels["Written"]["error"]["code"]


def test_nan_and_infinities_are_shown_as_text_and_not_as_missing(warehouse: Warehouse) -> None:
    floats = "SELECT * FROM (VALUES ('NaN'::double), ('-Infinity'::double), (NULL)) AS f(x)"

    panels = told(Answers(Dashboard("Shop", (Rows("F", floats),)), warehouse.tables, "shop"))

    assert [["NaN"], ["-Infinity"], [None]] == panels["F"]["rows"]


def test_a_number_that_a_browser_would_round_is_shown_as_text(warehouse: Warehouse) -> None:
    large = (
        "SELECT * FROM (VALUES (9007199254740991, CAST('0.1' AS decimal(38, 2))),"
        " (-1234567890123456789, CAST('12345678901234567.89' AS decimal(38, 2)))) AS f(id, total)"
    )

    panels = told(Answers(Dashboard("Shop", (Rows("F", large),)), warehouse.tables, "shop"))

    assert [
        [9007199254740991, 0.1],
        ["-1234567890123456789", "12345678901234567.89"],
    ] == panels["F"]["rows"]


def test_a_value_that_cannot_be_written_costs_its_own_panel_alone(warehouse: Warehouse) -> None:
    year_10000 = pa.array([253_402_300_800_000_000] * 2, pa.timestamp("us", "UTC"))
    warehouse.lsn = 5
    warehouse.write("ends", orders=[1, 2], at=year_10000)
    versions = {view: DeltaTable(str(warehouse.tables / view)).version() for view in VIEWS}
    assert warehouse.published.publish(1, 6, versions)
    asked = Dashboard(
        "Shop",
        (Rows("Ends", "SELECT at FROM ends"), Number("Orders", "SELECT count(*) FROM orders")),
    )

    panels = told(Answers(asked, warehouse.tables, "shop"))

    assert ("HW-U005", [[2]]) == (panels["Ends"]["error"]["code"], panels["Orders"]["rows"])


def test_a_table_that_cannot_be_read_costs_the_panels_that_read_it(warehouse: Warehouse) -> None:
    shutil.rmtree(warehouse.tables / "sums")

    panels = told(Answers(SHOP, warehouse.tables, "shop"))

    assert ("HW-U005", [[2]]) == (panels["Both"]["error"]["code"], panels["Orders"]["rows"])
    assert "HW-Q002" == panels["Written"]["error"]["code"]


def test_answers_that_fail_as_a_whole_are_told_to_whoever_asks(
    server: DashboardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Published, "current", lambda _: 1 / 0)

    answer, body = ask(server, "/panels.json")

    assert (503, b"the panels cannot be answered now\n") == (answer.status, body)


def test_what_is_not_published_is_not_shown_and_nobody_asks_twice(warehouse: Warehouse) -> None:
    answers = Answers(SHOP, warehouse.tables, "shop")
    first = answers.newest()

    warehouse.write("orders", id=[3], total=[Decimal("1.00")])

    assert answers.newest() is first
    warehouse.publish()
    assert first.etag != answers.newest().etag
    assert [[3]] == told(answers)["Orders"]["rows"]


def test_views_of_two_sources_are_shown_each_at_its_own_boundary(warehouse: Warehouse) -> None:
    asked = Dashboard(
        "Both",
        (Number("Bills", "SELECT count(*) FROM orders o JOIN bills b ON b.order_id = o.id"),),
    )
    answers = Answers(asked, warehouse.tables, "shop", ("billing",))
    first = answers.newest()
    assert "HW-Q001" == told(answers)["Bills"]["error"]["code"]

    warehouse.write("bills", order_id=[2])
    Published(warehouse.tables, "billing").publish(1, 77, {"bills": 0})

    assert first.etag != answers.newest().etag
    assert [[1]] == told(answers)["Bills"]["rows"]


def test_a_switch_at_the_same_boundary_is_another_answer(warehouse: Warehouse) -> None:
    warehouse.write("orders.2", id=[7], total=[Decimal("1.00")])
    versions = {"orders": 0, "sums": 0, "orders.2": 0}
    warehouse.published.publish(1, 9, versions)
    answers = Answers(SHOP, warehouse.tables, "shop")
    assert [[2]] == told(answers)["Orders"]["rows"]

    warehouse.published.switch({"orders": "orders.2"})

    assert [[1]] == told(answers)["Orders"]["rows"]


def test_many_rows_are_cut_and_counted(warehouse: Warehouse) -> None:
    count = ROWS_MAX + 5
    warehouse.write("orders", id=range(10, 10 + count), total=[Decimal("1.00")] * count)
    warehouse.publish()

    panel = told(Answers(SHOP, warehouse.tables, "shop"))["Sums"]

    assert (ROWS_MAX, count + 2) == (len(panel["rows"]), panel["count"])


def test_before_anything_is_published_each_panel_says_so(tmp_path: Path) -> None:
    panels = told(Answers(SHOP, tmp_path, "shop"))

    assert {"no view has been built yet"} == {each["error"]["message"] for each in panels.values()}


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js", "/chart.js", "/panels.json"])
def test_every_file_is_sent_with_what_keeps_it_apart(server: DashboardServer, path: str) -> None:
    answer, body = ask(server, path)
    head, nothing = ask(server, path, "HEAD")

    assert (200, 200) == (answer.status, head.status)
    assert (len(body), b"") == (int(head.headers["Content-Length"]), nothing)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "nosniff" == answer.headers["X-Content-Type-Options"]
    # nothing is loaded from elsewhere; the name of SVG's elements is no address to load from
    assert b"//" not in body.replace(b"http://www.w3.org/2000/svg", b"").replace(b"// ", b"")


def test_an_answer_that_is_known_is_not_sent_again(server: DashboardServer) -> None:
    first, _ = ask(server, "/panels.json")
    tag = first.headers["ETag"]

    again, body = ask(server, "/panels.json", **{"If-None-Match": tag})

    assert (304, b"", tag) == (again.status, body, again.headers["ETag"])


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [
        ("/panels.json", "GET", "evil.example", 421),
        ("/", "GET", "evil.example:8600", 421),
        ("/", "GET", "localhost:8600", 200),
        ("/", "GET", "[::1]:8600", 200),
        ("/../server.py", "GET", "localhost", 404),
        ("/page.html", "GET", "localhost", 404),
        ("/panels.json", "POST", "localhost", 501),
    ],
)
def test_who_asks_for_something_else_is_refused(
    server: DashboardServer, path: str, method: str, host: str, status: int
) -> None:
    answer, _ = ask(server, path, method, Host=host)

    assert status == answer.status


def test_a_port_that_is_taken_is_told(server: DashboardServer) -> None:
    with pytest.raises(DashboardPortError, match="cannot listen"):
        DashboardServer(server.answers, "127.0.0.1", server.server_address[1])


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ('dashboard("", [Number("a", "SELECT 1")])', "a title and panels"),
        ('dashboard("Shop", [])', "a title and panels"),
        ('dashboard("Shop", [Number("a", "")])', "a title and a SELECT"),
        ('dashboard("Shop", [("a", "SELECT 1")])', "a title and a SELECT"),
        ('dashboard("Shop", [Line("a", "SELECT 1"), Rows("a", "SELECT 2")])', "called a"),
        ('dashboard("A", [Line("a", "SELECT 1")])\ndashboard("B", [Line("a", "SELECT 1")])', "one"),
    ],
)
def test_what_cannot_be_a_page_is_refused(tmp_path: Path, declared: str, reason: str) -> None:
    path = tmp_path / "views.py"
    path.write_text(f"from headwater import Line, Number, Rows, dashboard\n{declared}\n")

    with pytest.raises(DeclarationError, match=reason):
        load(path)


def test_the_page_of_the_documentation_is_right(tmp_path: Path) -> None:
    page = Path(__file__).parents[4] / "docs" / "dashboard.md"
    (block,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "views.py").write_text(block)
    declared = load(tmp_path / "views.py").dashboard
    assert declared is not None
    minute = datetime(2026, 11, 24, 9, tzinfo=UTC)
    orders = {
        "id": [1, 2],
        "total": [Decimal("600.00"), Decimal("2.50")],
        "status": ["paid", "paid"],
        "placed_at": [minute, minute],
    }
    tables = {"orders": orders, "orders_per_minute": {"window_start": [minute], "orders": [2]}}
    for view, columns in tables.items():
        write_deltalake(str(tmp_path / "tables" / view), pa.table(columns))
    Published(tmp_path / "tables", "shop").publish(1, 10, dict.fromkeys(tables, 0))

    panels = told(Answers(declared, tmp_path / "tables", "shop"))

    assert [["2026-11-24T09:00:00+00:00", 2]] == panels["Orders per minute"]["rows"]
    assert [[602.5]] == panels["Sold"]["rows"]
    assert [["paid", 2]] == panels["By status"]["rows"]
    assert [1] == [row[0] for row in panels["Large orders"]["rows"]]


def test_one_clock_that_is_a_year_ahead_empties_no_chart_of_globalshop(tmp_path: Path) -> None:
    page = Path(__file__).parents[4] / "examples" / "globalshop" / "live" / "views.py"
    declared = load(page).dashboard
    assert declared is not None
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    starts = [now - timedelta(minutes=each) for each in (2, 1, 0)] + [now + timedelta(days=365)]
    windows = {"window_start": starts, "orders": [4, 5, 6, 1], "revenue": [40.0, 50.0, 60.0, 1.0]}
    delays = {"window_start": starts, "p50": [1.0] * 4, "p95": [2.0] * 4}
    rates = {"window_start": starts, "searches": [4] * 4, "clicked": [1] * 4}
    tables = {"orders_per_minute": windows, "payment_delay": delays, "click_through": rates}
    for view, columns in tables.items():
        write_deltalake(str(tmp_path / view), pa.table(columns))
    Published(tmp_path, "shop").publish(1, 10, dict.fromkeys(tables, 0))

    panels = told(Answers(declared, tmp_path, "shop"))

    assert [4, 5] == [row[1] for row in panels["Orders per minute"]["rows"]]
    assert 2 == len(panels["From order to payment"]["rows"])
    assert 2 == len(panels["Click-through rate"]["rows"])
    assert [[6]] == panels["Orders of this minute"]["rows"]
    assert [[50.0, 40.0]] == panels["Revenue of the last whole minute"]["rows"]


def test_the_command_needs_a_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headwater.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "views.py").write_text('from headwater import source\nsource("shop", ["orders"])\n')

    assert 2 == main(["dashboard"])
    assert "no dashboard is declared" in capsys.readouterr().err
