"""`headwater view verify` on a real source and real stores, beside a job that is played."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.lsn import Lsn
from cdc.postgres import own_schema
from headwater.cli import main
from headwater.cli.verification import gather
from headwater.errors import UnhealthyError
from headwater.platform.platform import Platform
from headwater.project.project import open_project, settings_file
from projections.common.fault import Fault
from projections.definition.views import Store
from projections.publishing import positions
from projections.stores.delta.table_sink import TableSink
from tests.support.project_text import cache_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.orders"])
view.mirror("orders", shop.orders, to=["cache", "table"])
"""
END = Lsn(2**60)
IN_CACHE, IN_TABLE = ("orders", Store.CACHE), ("orders", Store.TABLE)
FULL = Fault("HW-P062", "the cache is full", "OOM", "raise maxmemory", retriable=True)
CARETAKER = {"code": "HW-P029", "message": "the caretaker fails", "hint": "headwater logs"}


@pytest.fixture
def source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, cache_url: str
) -> Iterator[psycopg.Connection[Any]]:
    """The source of a project in this folder, never captured."""
    (tmp_path / "headwater.toml").write_text(cache_project(database, cache_url))
    (tmp_path / "views.py").write_text(VIEWS)
    monkeypatch.chdir(tmp_path)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
        yield connection


@pytest.fixture
def platform(source: psycopg.Connection[Any]) -> Platform:
    """A project whose view has a table."""
    own_schema.ensure(source)
    found = Platform(open_project(None), settings_file(None))
    tables = TableSink(found.views.job_spec().config.addresses.tables)
    for plan in found.views.plans():
        tables.prepare(plan)
    tables.close()
    return found


def said_of_the_job(platform: Platform, **said: Any) -> None:
    """As the job would leave it behind."""
    path = platform.project.settings.home / "run" / "job.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said))


def test_a_source_that_was_never_captured_is_refused(
    source: psycopg.Connection[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 3 == main(["view", "verify", "orders"])
    assert "was never captured" in capsys.readouterr().err


def test_a_row_that_a_store_has_not_is_named_and_the_command_exits_3(
    platform: Platform, source: psycopg.Connection[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    positions.publish(source, "shop", {IN_CACHE, IN_TABLE}, END)
    assert 0 == main(["view", "verify", "orders"])
    source.execute("INSERT INTO orders VALUES (7, 'open')")
    capsys.readouterr()

    assert 3 == main(["view", "verify", "orders"])

    told = capsys.readouterr()
    assert "orders in cache, such as" in told.err
    assert "row 7 (missing)" in told.err
    assert "headwater view repair orders" in told.err


def test_views_that_stay_behind_are_told_with_what_holds_them_up(
    platform: Platform, source: psycopg.Connection[Any]
) -> None:
    said_of_the_job(
        platform,
        queries={"cache": {"error": asdict(FULL)}, "table": {"error": None}},
        attendants={"caretaker": {"error": CARETAKER}, "publisher": {"error": None}},
    )
    positions.publish(source, "shop", {IN_TABLE}, END)

    with pytest.raises(UnhealthyError) as behind:
        gather(platform, [], None, catch_up_s=0.0)

    assert FULL.hint == behind.value.hint
    assert [
        "orders in cache",
        "caretaker: HW-P029 the caretaker fails",
        "cache: HW-P062 the cache is full",
    ] == str(behind.value.detail).split("; ")


def test_a_store_that_is_not_written_is_told_and_the_others_are_compared(
    platform: Platform, source: psycopg.Connection[Any]
) -> None:
    said_of_the_job(platform, queries={"cache": {"error": asdict(FULL)}, "table": {"error": None}})
    positions.publish(source, "shop", {IN_TABLE}, END)

    left_out = platform.await_stores(platform.current_lsn(), 60.0, store_s=0.0)
    reports = platform.views.verify(but={IN_CACHE})

    assert [(*IN_CACHE, FULL)] == [(each.view, each.store, each.fault) for each in left_out]
    assert [IN_TABLE] == [(report.view, report.store) for report in reports]


def test_a_view_that_is_behind_where_the_job_writes_is_no_fault_of_a_store(
    platform: Platform,
) -> None:
    said_of_the_job(platform, queries={"cache": {"error": asdict(FULL)}, "table": {"error": None}})

    with pytest.raises(UnhealthyError) as behind:
        platform.await_stores(platform.current_lsn(), 0.5, store_s=0.0)

    assert "orders in cache, orders in table" in str(behind.value.detail)
