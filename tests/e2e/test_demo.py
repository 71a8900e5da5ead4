"""The demo as a person runs it, and the proof that its comparison can fail."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import opensearchpy
import psutil
import psycopg
import pyarrow.compute as pc
import pytest
import redis
from deltalake import DeltaTable
from rich.console import Console

from cdc.position_token import PositionToken
from headwater.cli import main
from headwater.demo.demo import run_demo
from headwater.demo.options import DemoOptions
from headwater.demo.result import STORES
from headwater.views import Views
from projections.published import Published
from projections.read_barrier import BehindError, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headwater.demo.port import Stack
    from headwater.demo.reader import Places

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
VIEWS = {
    "customers",
    "products",
    "inventory",
    "orders",
    "order_items",
    "payments",
    "order_events",
    "order_document",
    "product_document",
    "sales_by_status",
    "payments_by_method",
    "stock_by_warehouse",
    "best_sellers",
    "customer_card",
}
HISTORIES = {"orders_history", "products_history"}
SHORT = ("--seconds", "10", "--scale", "0.2")


def demo(home: Path, *words: str, timeout_s: float = 540) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headwater", "demo", "--home", str(home), "--json", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def left_running(home: Path) -> list[str]:
    """Programs that still have this home among their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(home) in words and process.pid != os.getpid() and "pytest" not in words:
            found.append(process.name())
    return found


@pytest.fixture
def home(tmp_path) -> Iterator[Path]:
    folder = tmp_path / ".headwater"
    yield folder
    assert left_running(folder) == []


def test_the_demo_ends_with_every_view_equal_to_its_source(home, tmp_path, capsys):
    screen = tmp_path / "screen.svg"

    done = demo(home, *SHORT, "--save-screen", str(screen))

    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["verified"] is True
    assert {(v["view"], v["store"]) for v in found["views"]} == {
        *((view, store) for view in VIEWS for store in STORES),
        *((view, "table") for view in HISTORIES),
    }
    assert all(v["missing"] == v["extra"] == v["different"] == 0 for v in found["views"])
    assert all(v["rows"] > 0 for v in found["views"])
    assert [i["holds"] for i in found["invariants"]] == [True]
    assert found["changes"] > 500
    assert set(found["freshness"]) == set(STORES)
    assert all(store["samples"] > 20 for store in found["freshness"].values())
    assert found["memory_mib"] > 500
    assert screen.read_text().startswith("<svg")
    compare_two_times(home, capsys)


def compare_two_times(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a view gained and lost between two of its versions is how its rows have grown."""

    def said(*words: str) -> Any:
        assert main([*words, "--home", str(home), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    compared = ("orders", "customers", "order_events", "orders_history", "sales_by_status")
    versions = Published(home / "tables", "shop").all()
    assert len(said("view", "versions")) == len(versions)
    # of the first boundaries tables may be missing that are still being read
    whole = [str(each.number) for each in versions if each.views.keys() >= {*compared}]
    first, last = whole[0], whole[-1]
    for view in compared:
        counts = [
            said("query", f"SELECT count(*) AS n FROM {view}", "--as-of", at)[0]["n"]  # noqa: S608
            for at in (first, last)
        ]
        found = said("view", "diff", view, first, last)
        assert counts[1] - counts[0] == found["appeared"] - found["gone"]
        back = said("view", "diff", view, last, first)
        assert (found["appeared"], found["gone"]) == (back["gone"], back["appeared"])
        assert (found["changed"], found["by_column"]) == (back["changed"], back["by_column"])
    assert said("view", "diff", "orders", last)["changed"] == 0
    assert said("view", "diff", "sales_by_status", first)["by_column"]["orders"] > 0
    assert main(["view", "diff", "nothing", first, "--home", str(home)]) == 2
    assert main(["view", "diff", "orders", "0/1", "--home", str(home)]) == 2


@pytest.mark.timeout(1_500)
def test_a_view_is_rebuilt_and_moved_twenty_times_and_no_reader_notices(home):
    """Whoever builds it, some of those who move readers, and the job are killed on the way."""
    done = demo(home, "--rebuild", *SHORT, "--rate", "50", timeout_s=1_440)

    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["verified"] is True
    rebuilt = found["rebuilt"]
    assert set(STORES) == set(rebuilt["watched"])
    for store, seen in rebuilt["watched"].items():
        assert seen["reads"] > 100, store
        assert (0, 0, 0) == (seen["errors"], seen["empties"], seen["steps_back"]), (store, seen)
    assert (2, "inventory") == (rebuilt["version"], rebuilt["view"])
    assert rebuilt["switches"] >= 20
    assert rebuilt["killed"] >= 1
    assert 1 == rebuilt["builds_killed"]
    assert "spark" == rebuilt["job_killed"]["killed"]
    assert 0 < rebuilt["job_killed"]["back_after_s"]
    for when in ("building", "switching"):
        assert all(rebuilt[when][store]["samples"] > 0 for store in STORES), when


def test_a_row_that_was_tampered_with_in_a_store_turns_the_demo_red(home):
    """A row taken out, one put in, one changed, a counter changed; each is found where it was.

    Before that somebody writes, and reads what was written in every store.
    """
    options = DemoOptions(seconds=4.0, scale=0.1, home=home)

    result = run_demo(options, Console(file=io.StringIO()), before_comparison=write_and_tamper)

    wrong = {
        (v.view, v.store): (v.missing, v.extra, v.different) for v in result.views if not v.agrees
    }
    assert not result.verified
    assert wrong == {
        ("orders", "cache"): (1, 0, 1),
        ("customers", "cache"): (0, 0, 1),
        ("products", "search"): (0, 1, 0),
        ("orders_history", "table"): (1, 0, 0),
    }


def write_and_tamper(stack: Stack, places: Places) -> None:
    with Views(stack) as views:
        read_own_writes(views, stack.source_dsn)
    tamper(places)


def read_own_writes(views: Views, dsn: str) -> None:
    customers, card, products = views["customers"], views["customer_card"], views["products"]
    with psycopg.connect(dsn) as source:
        number, sku = source.execute(
            "SELECT (SELECT id FROM customers ORDER BY id LIMIT 1), (SELECT min(sku) FROM products)"
        ).fetchone()
        for name in ("Ada Byron", "Ada King", "Ada Lovelace"):
            source.execute("UPDATE customers SET full_name = %s WHERE id = %s", (name, number))
            source.commit()
            token = views.token(source)
            assert name == customers.read(number, at_least=token, timeout_s=60)["full_name"]
        source.execute("UPDATE products SET name = 'Analytical engine' WHERE sku = %s", (sku,))
        source.commit()
        token = PositionToken.parse(str(views.token(source)))
        found = products.search("analytical engine", at_least=token, timeout_s=60)
        assert sku == found.hits[0].key
        sql = "SELECT full_name FROM customers ORDER BY id LIMIT 1"
        rows = views.query(sql, at_least=token, timeout_s=60).to_pylist()
        assert [{"full_name": name}] == rows
        assert name == card.read(number, at_least=token, timeout_s=60)["full_name"]
        for view in VIEWS | HISTORIES:
            views[view].wait_for(token, timeout_s=60)

        source.execute("UPDATE customers SET full_name = full_name WHERE id = %s", (number,))
        source.commit()
        later = views.token(source)
    with pytest.raises(BehindError) as late:
        customers.wait_for(later, timeout_s=0)
    assert {Stage.BATCH, Stage.CAPTURE} >= {each.stage for each in late.value.late}
    read = customers.read(number, at_least=later, timeout_s=0, otherwise=lambda: "folded")
    assert "folded" == read


def tamper(places: Places) -> None:
    with redis.Redis.from_url(places.cache_url) as cache:
        cache.delete(next(cache.scan_iter(f"{places.cache_prefix}orders:*")))
        key = next(cache.scan_iter(f"{places.cache_prefix}customers:*"))
        row = json.loads(cache.get(key))
        cache.set(key, json.dumps(row | {"full_name": "Mallory"}))
        counter = next(cache.scan_iter(f"{places.cache_prefix}_counter:orders:orders:*"))
        cache.hincrby(counter, "rows", 1)
    body = {"sku": "FORGED", "name": "forged", "price": "1.00", "active": True}
    with opensearchpy.OpenSearch(hosts=[places.search_url]) as search:
        search.index(index="products-v1", id="FORGED", body=body, refresh=True)
    # no view is made from this one: the job goes on, and would make that from what is left
    history = DeltaTable(places.tables / "orders_history")
    one = history.to_pyarrow_dataset().head(1, filter=pc.field("is_current"))["id"][0].as_py()
    history.delete(f"is_current AND id = '{one}'")


def test_ctrl_c_stops_everything_and_exits_130(home):
    command = [sys.executable, "-m", "headwater", "demo", "--home", str(home)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as child:
        wait_for_line(child, "loaded")
        child.send_signal(signal.SIGINT)
        code = child.wait(90)

    assert code == 130


def wait_for_line(child: subprocess.Popen[str], word: str) -> None:
    deadline = time.monotonic() + 120
    seen = []
    for line in child.stderr:
        seen.append(line)
        if word in line:
            return
        assert time.monotonic() < deadline
    raise AssertionError("".join(seen))
