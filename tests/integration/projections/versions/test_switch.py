"""Readers are moved to another version and back, also where a store does not answer."""

from __future__ import annotations

import secrets
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
import redis
from deltalake import write_deltalake

from cdc.lsn import Lsn
from cdc.postgres import own_schema
from cdc.table import TableName
from projections.common import store_lock
from projections.definition.views import MirrorView, Store
from projections.errors import (
    SinkUnavailableError,
    SwitchUnfinishedError,
    VersionBehindError,
    VersionBusyError,
    VersionUnknownError,
)
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.publishing import positions
from projections.publishing.published_versions import Published
from projections.stores.opensearch.client import SearchEngine
from projections.stores.opensearch.sink import index_name
from projections.versions import cutover, rebuild, registry, retire, routing
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from projections.versions.version import ViewVersion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

NOWHERE = "http://127.0.0.1:1"
TABLE = TableName("public", "orders")


class Places:
    """Views, each with versions that have the same changes in every store."""

    def __init__(self, connection: psycopg.Connection[Any], spec: JobSpec) -> None:
        self.connection = connection
        self.spec = spec
        self.engine = SearchEngine(spec.config.search_url)
        self._published = Published(spec.config.addresses.tables, spec.config.source)
        self._made: list[str] = []

    def view(self, name: str, versions: int) -> str:
        """Makes a view whose first version is shown; returns its name."""
        view = MirrorView(
            f"{self.spec.config.source}_{name}",
            self.spec.config.source,
            TABLE,
            (),
            frozenset(Store),
        )
        for number in range(1, versions + 1):
            state = VersionState.CURRENT if number == 1 else VersionState.HELD
            registry.add(self.connection, self.spec.config.source, view, state)
        for version in self.versions(view.name):
            self._fill(version)
        self.publish()
        for store in Store:
            routing.activate(self.spec.config, store, self.version(view.name, 1))
        return view.name

    def versions(self, view: str) -> list[ViewVersion]:
        return registry.of_view(self.connection, self.spec.config.source, view)

    def version(self, view: str, number: int) -> ViewVersion:
        return rebuild.numbered(self.connection, self.spec.config, view, number)

    def states(self, view: str) -> dict[int, str]:
        return {each.number: str(each.state) for each in self.versions(view)}

    def moving(self) -> list[str]:
        """Places of versions to which readers are being moved."""
        versions = registry.read(self.connection, self.spec.config.source)
        return [each.physical_name.partition("_")[2] for each in versions if each.switching]

    def shown(self, view: str) -> dict[Store, list[int]]:
        """Numbers of the versions that readers of each store see."""
        versions = self.versions(view)
        return {
            store: [
                each.number for each in versions if routing.is_active(self.spec.config, store, each)
            ]
            for store in Store
        }

    def publish(self) -> None:
        latest = self._published.latest()
        lsn = 100 if latest is None else latest.lsn + 100
        self._published.publish(1, lsn, dict.fromkeys(self._made, 0))
        claimed = [(place, store) for place in self._made for store in Store]
        positions.publish(self.connection, self.spec.config.source, claimed, Lsn(lsn))

    def block(self, version: ViewVersion, *, blocked: bool = True) -> None:
        """Has search refuse to show a version, though it answers."""
        self.engine.request(
            "PUT", f"/{self._index(version)}/_settings", {"index.blocks.read_only": blocked}
        )

    def remove(self) -> None:
        for place in self._made:
            self.engine.request("DELETE", f"/{index_name(routing.plan_of_name(place, ()))}")
        with closing(redis.Redis.from_url(self.spec.config.cache_url)) as cache:
            cache.delete(f"{self.spec.config.source}:_current")
        self.engine.close()

    def _fill(self, version: ViewVersion) -> None:
        self._made.append(version.physical_name)
        write_deltalake(
            str(self.spec.config.addresses.tables / version.physical_name),
            pa.table({"id": [version.number]}),
        )
        self.engine.request("PUT", f"/{self._index(version)}")

    @staticmethod
    def _index(version: ViewVersion) -> str:
        return index_name(routing.plan_of_name(version.physical_name, ()))


@pytest.fixture
def places(database: str, search_url: str, cache_url: str, tmp_path: Path) -> Iterator[Places]:
    source = f"s{secrets.token_hex(4)}"
    spec = JobSpec(JobConfig(source, "", database, "", tmp_path, cache_url, search_url, ()))
    with psycopg.connect(database, autocommit=True) as connection:
        own_schema.ensure(connection)
        made = Places(connection, spec)
        yield made
        made.remove()


def everywhere(number: int) -> dict[Store, list[int]]:
    return {store: [number] for store in Store}


def moved(places: Places, view: str, number: int) -> None:
    cutover.switch(places.connection, places.spec.config, places.version(view, number))


def test_readers_are_taken_back_to_the_version_that_they_saw_last(places: Places) -> None:
    view = places.view("orders", 3)
    moved(places, view, 2)
    assert (
        1 == cutover.roll_back(places.connection, places.spec.config, view).number
    )  # 2 was rejected
    moved(places, view, 3)
    assert {1: "former", 2: "former", 3: "current"} == places.states(view)

    assert 1 == cutover.roll_back(places.connection, places.spec.config, view).number

    assert everywhere(1) == places.shown(view)
    assert {1: "current", 2: "former", 3: "former"} == places.states(view)
    assert 3 == cutover.roll_back(places.connection, places.spec.config, view).number


def test_nobody_is_taken_back_to_a_version_before_one_that_was_dropped(places: Places) -> None:
    view = places.view("orders", 3)
    with pytest.raises(VersionUnknownError, match="no version that readers saw before"):
        cutover.roll_back(places.connection, places.spec.config, view)
    moved(places, view, 2)
    places.connection.execute(  # what is there between two switches
        "UPDATE headwater.view_versions SET changed_at = changed_at - interval '1 minute'"
    )
    moved(places, view, 3)
    places.connection.execute(
        "UPDATE headwater.view_versions SET state = 'dropped' WHERE version = 2"
    )

    with pytest.raises(VersionUnknownError, match="was dropped") as refused:
        cutover.roll_back(places.connection, places.spec.config, view)

    assert refused.value.hint is not None
    assert f"cutover {view} 1" in refused.value.hint
    assert everywhere(3) == places.shown(view)


def test_nothing_is_moved_where_a_store_does_not_answer(places: Places) -> None:
    view = places.view("orders", 2)
    away = replace(places.spec, config=replace(places.spec.config, search_url=NOWHERE))

    with pytest.raises(SinkUnavailableError, match="search cannot be asked") as refused:
        cutover.switch(places.connection, away.config, places.version(view, 2))

    assert refused.value.hint is not None
    assert "nothing has changed" in refused.value.hint
    assert everywhere(1) == places.shown(view)
    assert [] == places.moving()


def test_nothing_is_noted_while_a_batch_takes_too_long(
    places: Places, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, source = places.view("orders", 2), places.spec.config.source
    monkeypatch.setattr(store_lock, "MOVE_WAIT_S", 1.0)
    with (
        psycopg.connect(database, autocommit=True) as batch,
        store_lock.shared(batch, source, Store.CACHE),
        pytest.raises(VersionBusyError),
    ):
        moved(places, view, 2)

    assert [] == places.moving()
    assert everywhere(1) == places.shown(view)


def test_what_is_behind_in_the_boundary_that_comes_next_is_not_noted(places: Places) -> None:
    view = places.view("orders", 2)
    published = Published(places.spec.config.addresses.tables, places.spec.config.source)
    published.publish(1, 1_000, {view: 0}, complete=False)

    with pytest.raises(VersionBehindError, match="is behind"):
        moved(places, view, 2)

    assert [] == places.moving()


def test_a_switch_that_a_store_refuses_amid_it_is_finished_later(
    places: Places, database: str
) -> None:
    view, other = places.view("orders", 2), places.view("customers", 2)
    places.block(places.version(view, 2))
    with pytest.raises(SwitchUnfinishedError, match="not see version 2 everywhere yet") as told:
        moved(places, view, 2)
    assert "search: " in str(told.value.detail)
    assert "the job completes it" in str(told.value.hint)
    assert {Store.TABLE: [2], Store.SEARCH: [1], Store.CACHE: [2]} == places.shown(view)
    assert ["orders.v2"] == places.moving()
    with pytest.raises(VersionUnknownError, match="on their way"):
        retire.drop(places.connection, places.spec.config, places.version(view, 2))

    moved(places, other, 2)  # it waits for nobody
    assert everywhere(2) == places.shown(other)
    with pytest.raises(SwitchUnfinishedError):
        cutover.resume(places.connection, places.spec.config)
    places.block(places.version(view, 2), blocked=False)
    with (  # batches of stores that show it already go on
        psycopg.connect(database, autocommit=True) as batch,
        store_lock.shared(batch, places.spec.config.source, Store.TABLE),
        store_lock.shared(batch, places.spec.config.source, Store.CACHE),
    ):
        cutover.resume(places.connection, places.spec.config)

    assert everywhere(2) == places.shown(view)
    assert {1: "former", 2: "current"} == places.states(view)
    assert [] == places.moving()


def test_a_way_back_is_gone_in_the_stores_that_answer_and_later_in_the_others(
    places: Places,
) -> None:
    view = places.view("orders", 2)
    places.block(places.version(view, 2))
    with pytest.raises(SwitchUnfinishedError):
        moved(places, view, 2)
    places.block(places.version(view, 2), blocked=False)
    away = replace(places.spec, config=replace(places.spec.config, search_url=NOWHERE))

    for _ in range(2):  # whoever is told that it is not done yet may say it again
        with pytest.raises(SwitchUnfinishedError, match="not see version 1 everywhere yet"):
            cutover.roll_back(places.connection, away.config, view)

        assert everywhere(1) == places.shown(view)
        assert ["orders"] == places.moving()
    cutover.resume(places.connection, places.spec.config)

    assert {1: "current", 2: "held"} == places.states(view)
    assert [] == places.moving()


def test_a_way_back_that_was_begun_is_gone_to_its_end_and_not_back_again(places: Places) -> None:
    view = places.view("orders", 2)
    moved(places, view, 2)
    places.block(places.version(view, 1))
    with pytest.raises(SwitchUnfinishedError):
        cutover.roll_back(places.connection, places.spec.config, view)
    assert ["orders"] == places.moving()
    places.block(places.version(view, 1), blocked=False)

    assert 1 == cutover.roll_back(places.connection, places.spec.config, view).number

    assert everywhere(1) == places.shown(view)
    assert {1: "current", 2: "former"} == places.states(view)


def test_who_notes_another_view_amid_a_switch_takes_nothing_from_it(places: Places) -> None:
    view, other = places.view("orders", 2), places.view("customers", 2)
    source, spec = places.spec.config.source, places.spec
    registry.note_switching(places.connection, source, places.version(view, 2).physical_name)
    registry.note_switching(places.connection, source, places.version(other, 2).physical_name)
    assert ["customers.v2", "orders.v2"] == places.moving()

    finished = cutover.finish(places.connection, spec.config, view)

    assert finished is not None
    assert (view, 2) == (finished.view, finished.number)
    assert everywhere(2) == places.shown(view)
    assert everywhere(1) == places.shown(other)  # whoever noted it is at it
    assert ["customers.v2"] == places.moving()


def test_the_job_finishes_what_nobody_is_at(places: Places, database: str) -> None:
    view, other = places.view("orders", 2), places.view("customers", 2)
    source = places.spec.config.source
    for name in (view, other):
        registry.note_switching(places.connection, source, places.version(name, 2).physical_name)
    with (
        psycopg.connect(database, autocommit=True) as other_connection,
        registry.version_lock(other_connection, source, other),
    ):
        cutover.resume(places.connection, places.spec.config)

        assert everywhere(2) == places.shown(view)
        assert everywhere(1) == places.shown(other)
    cutover.resume(places.connection, places.spec.config)

    assert everywhere(2) == places.shown(other)


def test_what_a_store_has_forgotten_is_shown_again_also_while_another_view_is_moved(
    places: Places,
) -> None:
    view, other = places.view("orders", 2), places.view("customers", 2)
    moved(places, view, 2)
    routing.activate(places.spec.config, Store.CACHE, places.version(view, 1))
    registry.note_switching(
        places.connection, places.spec.config.source, places.version(other, 2).physical_name
    )

    cutover.restore_pointers(places.connection, places.spec.config)

    assert everywhere(2) == places.shown(view)
    assert everywhere(1) == places.shown(other)
