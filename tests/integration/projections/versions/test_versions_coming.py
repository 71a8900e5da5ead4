"""A version that the job has yet to take over holds up neither a wait nor a verification."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.lsn import Lsn
from cdc.postgres import own_schema
from headwater.errors import UnhealthyError
from headwater.platform.platform import Platform
from headwater.project.project import open_project, settings_file
from projections.definition.views import Store
from projections.publishing import positions
from projections.verification.background import BackgroundVerification
from projections.versions import registry
from projections.versions.version import VersionState
from tests.support.project_text import cache_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

VIEWS = """
from headwater import source, view

shop = source("shop", tables=["public.orders", "public.items"])
orders = view.mirror("orders", shop.orders, to=["cache"])
items = view.mirror("items", shop.items, to=["cache", "table"])
view.aggregate("totals", items, by=["kind"], count="number", to=["cache"])
"""
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, status text);
CREATE TABLE items (id int PRIMARY KEY, kind text)
"""
END = Lsn(2**60)
PLACES = {
    *(("orders", Store.CACHE), ("items", Store.CACHE), ("items", Store.TABLE)),
    *(("totals", Store.CACHE), ("totals", Store.TABLE)),
}


@pytest.fixture
def source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, cache_url: str
) -> Iterator[psycopg.Connection[Any]]:
    """A project in this folder of which all views are everywhere; no job runs."""
    (tmp_path / "headwater.toml").write_text(cache_project(database, cache_url))
    (tmp_path / "views.py").write_text(VIEWS)
    monkeypatch.chdir(tmp_path)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
        own_schema.ensure(connection)
        positions.publish(connection, "shop", PLACES, END)
        yield connection


@pytest.fixture
def platform(source: psycopg.Connection[Any]) -> Platform:
    found = Platform(open_project(None), settings_file(None))
    declared = found.project.declarations
    views = [*declared.views.values(), *declared.derived.values()]
    registry.register(source, "shop", views)
    for view in views:  # another version of each is coming
        number = registry.add(source, "shop", view, VersionState.JOINING)
        assert 2 == number
    return found


def test_a_version_that_is_coming_is_not_waited_for_until_it_is_held(
    platform: Platform, source: psycopg.Connection[Any]
) -> None:
    job = {plan.name for plan in platform.views.plans()}
    assert {"orders", "orders.v2", "items", "items.v2"} == job  # which keeps it all the same

    platform.await_applied(END, 0.0)
    registry.move(source, "shop", "totals.v2", VersionState.HELD, [VersionState.JOINING])
    registry.move(source, "shop", "orders.v2", VersionState.HELD, [VersionState.JOINING])
    with pytest.raises(UnhealthyError) as behind:
        platform.await_applied(END, 0.0)

    assert "orders.v2 in cache, totals.v2 in cache" == behind.value.detail


def test_a_version_that_is_coming_is_compared_by_nobody(
    platform: Platform, source: psycopg.Connection[Any]
) -> None:
    source.execute("INSERT INTO orders VALUES (1, 'open')")  # which no version has

    found = {(r.view, r.store): r.missing for r in platform.views.verify(["orders"])}
    assert {("orders", Store.CACHE): 1} == found

    spec = platform.views.job_spec()

    def bound() -> Any:
        plans, derived = platform.views.taken_over()
        return replace(spec, plans=plans, derived=derived)

    background = BackgroundVerification(bound, 1.0, threading.Event(), deadline_s=0.0)
    looked_at = {report.view for _ in range(4) for report in background.look()}
    assert {"orders", "items"} == looked_at
