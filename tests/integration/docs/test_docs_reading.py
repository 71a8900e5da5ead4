"""The page about reading one's own writes is run as it stands; the job alone is played."""

from __future__ import annotations

import doctest
import http.client
import json
import re
import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import psycopg
import pytest
import redis

from cdc.lsn import Lsn
from cdc.postgres import captures, catalog, own_schema
from cdc.postgres.captures import Capture
from headwater.cli import main
from headwater.reading.http_tokens import HEADER
from projections.changes.row_change import RowChange
from projections.definition.registry import load
from projections.definition.views import Store
from projections.planning.view_plan import plan_views
from projections.publishing import positions
from projections.stores.valkey.sink import CacheSink
from tests.support.project_text import cache_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.planning.view_plan import ViewPlan

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reading.md").read_text()
VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.orders"])
orders = view.mirror("orders", shop.orders, to=["cache"])
"""
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric(12,2));
INSERT INTO orders VALUES (1, 'open', 10)
"""


class Job:
    """Takes the table's rows to the cache, and says how far it is, as the real one does."""

    def __init__(self, dsn: str, url: str, plan: ViewPlan) -> None:
        self._dsn, self._plan = dsn, plan
        self._sink = CacheSink(url, "shop:")
        self._sink.prepare(plan)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._sink.close()

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as source:
            while not self._stopped.wait(0.05):
                row = source.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                reached = Lsn.parse(row[0])
                found = source.execute("SELECT id, status, total FROM orders").fetchall()
                version = (1 << 56) + reached.value
                rows = [dict(zip(("id", "status", "total"), each, strict=True)) for each in found]
                self._sink.apply(
                    self._plan, [RowChange((row["id"],), version, row, 1) for row in rows]
                )
                positions.publish(source, "shop", [("orders", Store.CACHE)], reached)


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, cache_url: str
) -> Iterator[dict[str, Any]]:
    """The page's project in this folder, and what its examples start from."""
    url = cache_url.removesuffix("/0") + "/2"
    (tmp_path / "headwater.toml").write_text(cache_project(database, url))
    (tmp_path / "views.py").write_text(VIEWS)
    monkeypatch.chdir(tmp_path)
    views = load(tmp_path / "views.py").views
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
        own_schema.ensure(connection)
        captures.record(connection, Capture("shop", 1, "headwater_shop", Lsn(1), 7, 1))
        (orders,) = plan_views(
            views.values(), catalog.describe(connection, [views["orders"].table])
        )
    job = Job(database, url, orders)
    yield {"dsn": database, "job": job}
    job.stop()
    with redis.Redis.from_url(url) as client:
        client.flushdb()


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_every_example_of_the_page_does_what_it_shows(place: dict[str, Any]) -> None:
    examples = "\n".join(re.findall(r"```pycon\n(.*?)```", PAGE, re.DOTALL))
    found = doctest.DocTestParser().get_doctest(examples, place, "reading.md", "", 0)
    told: list[str] = []
    done = doctest.DocTestRunner(verbose=False).run(found, out=told.append, clear_globs=False)
    found.globs["views"].close()

    assert [] == told
    assert len(found.examples) == done.attempted > 10


def test_a_client_that_sends_the_header_back_reads_what_it_wrote(place: dict[str, Any]) -> None:
    from headwater.reading.views import Views

    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with Views.open() as views:
        scope = {"dsn": place["dsn"], "psycopg": psycopg, "views": views}
        exec(code, scope)  # noqa: S102  # the page's own
        with make_server("127.0.0.1", 0, scope["app"], handler_class=Quiet) as server:
            serving = threading.Thread(target=server.serve_forever, args=(0.05,))
            serving.start()
            client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
            client.request("POST", "/")
            written = client.getresponse()
            written.read()
            client.request("GET", "/", headers={HEADER: written.headers[HEADER]})
            read = client.getresponse()
            body = read.read()
            place["job"].stop()
            client.request("POST", "/")
            later = client.getresponse()
            later.read()
            client.request("GET", "/", headers={HEADER: later.headers[HEADER]})
            behind = client.getresponse()
            told = json.loads(behind.read())
            client.close()
            server.shutdown()
            serving.join()

    assert (204, 200, b"packed") == (written.status, read.status, body)
    assert read.headers[HEADER] == written.headers[HEADER]
    assert (503, "HW-P033") == (behind.status, told["code"])
    assert told["detail"].startswith("orders in cache: capture, ")


def test_every_command_of_the_page_runs(
    place: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (commands,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    first, *others = [shlex.split(line)[2:] for line in commands.splitlines()]
    assert 0 == main(first)
    token = capsys.readouterr().out.strip()

    for words in others:
        assert 0 == main([token if word == "$TOKEN" else word for word in [*words, "--json"]])
    assert "open" in capsys.readouterr().out

    place["job"].stop()
    assert 0 == main(["token", "--json"])
    later = json.loads(capsys.readouterr().out)
    assert ("shop", 1) == (later["source"], later["epoch"])
    wait = ["view", "wait", "orders", later["token"], "--timeout", "0.1"]
    with psycopg.connect(place["dsn"], autocommit=True) as source:
        source.execute("UPDATE orders SET total = 11")
    assert 0 == main(["token"])
    wait[3] = capsys.readouterr().out.strip()
    assert 3 == main(wait)
    assert "capture, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("view wait orders nonsense", 2, "HW-C081"),
        ("view wait ordrs {token}", 2, "did you mean orders?"),
        ("view wait orders {token} --store search", 2, "its stores: cache"),
        ("view wait orders {foreign}", 2, "HW-C084"),
        ("view wait orders {future}", 1, "HW-C086"),
        ("query 'SELECT 1' --as-of 1 --at-least {token}", 2, "exclude each other"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(
    place: dict[str, Any], words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == main(["token"])
    token = capsys.readouterr().out.strip()
    forms = {
        "token": token,
        "foreign": token.replace("shop", "store"),
        "future": "hwp1.1.00FFFFFFFFFFFFFF.shop",
    }
    assert code == main(shlex.split(words.format(**forms)))
    assert said in capsys.readouterr().err
    assert place["job"]
