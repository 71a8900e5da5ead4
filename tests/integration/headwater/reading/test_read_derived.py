"""SQL over a view made from others has what was written, wherever that view lives."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc.lsn import Lsn
from cdc.postgres import captures, own_schema
from cdc.postgres.captures import Capture
from headwater.cli import main
from headwater.cli.options import TIMEOUT_S
from headwater.errors import UsageError
from headwater.reading.views import BehindError, Views
from projections.definition.views import Store
from projections.publishing import positions, read_barrier
from projections.publishing.published_versions import Published
from tests.support.project_text import cache_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.orders"])
orders = view.mirror("orders", shop.orders, to=["table"])
view.aggregate("totals", orders, by=["status"], count="number", to=["cache"])
"""
SQL = "SELECT number FROM totals"
ROWS = pa.table({"status": ["paid"], "number": [1]})


@pytest.fixture
def source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, cache_url: str
) -> Iterator[psycopg.Connection[Any]]:
    """A project in this folder; the job is played, and has published the table of `totals`."""
    (tmp_path / "headwater.toml").write_text(cache_project(database, cache_url))
    (tmp_path / "views.py").write_text(VIEWS)
    monkeypatch.chdir(tmp_path)
    tables = tmp_path / ".headwater" / "tables"
    write_deltalake(str(tables / "totals"), ROWS)
    Published(tables, "shop").publish(1, 1, {"totals": 0})
    with psycopg.connect(database, autocommit=True) as connection:
        own_schema.ensure(connection)
        captures.record(connection, Capture("shop", 1, "headwater_shop", Lsn(1), 7, 1))
        yield connection


def come(source: psycopg.Connection[Any], lsn: Lsn, store: Store) -> None:
    positions.publish(source, "shop", [("totals", store)], lsn)


def test_sql_waits_for_the_table_of_a_view_that_lives_in_the_cache_alone(
    source: psycopg.Connection[Any],
) -> None:
    with Views.open() as views:
        token = views.token()
        come(source, token.lsn, Store.CACHE)
        come(source, Lsn(token.lsn.value - 1), Store.TABLE)

        with pytest.raises(BehindError) as behind:
            views.query(SQL, at_least=token, timeout_s=0)
        assert [("totals", Store.TABLE, 1)] == [
            (each.view, each.store, each.behind_bytes) for each in behind.value.late
        ]
        views["totals"].wait_for(token, timeout_s=0)  # where it lives, it is

        later = threading.Timer(0.3, come, (source, token.lsn, Store.TABLE))
        later.start()
        assert [{"number": 1}] == views.query(SQL, at_least=token, timeout_s=60).to_pylist()
        later.join()
        views["totals"].wait_for(token, stores={Store.TABLE}, timeout_s=0)
        with pytest.raises(UsageError, match="is not in search"):
            views["totals"].wait_for(token, stores={Store.SEARCH}, timeout_s=0)


@pytest.mark.parametrize(
    "words",
    [["query", SQL], ["cache", "get", "totals", "paid"], ["cache", "count", "totals"]],
    ids=["query", "get", "count"],
)
def test_a_command_waits_as_long_as_it_is_told(
    source: psycopg.Connection[Any], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with Views.open() as views:
        token = str(views.token())
    for store in (Store.TABLE, Store.CACHE):
        come(source, Lsn(1), store)
    began = time.monotonic()

    assert 3 == main([*words, "--at-least", token, "--timeout", "0.1"])

    assert time.monotonic() - began < TIMEOUT_S
    assert "did not reach the position in time" in capsys.readouterr().err


@pytest.mark.usefixtures("source")
def test_its_table_can_be_verified_wherever_it_lives(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["view", "verify", "totals", "--store", "search"])
    assert "its stores: cache, table" in capsys.readouterr().err


def test_a_command_that_is_not_told_waits_as_an_application_does() -> None:
    assert read_barrier.TIMEOUT_S == TIMEOUT_S
