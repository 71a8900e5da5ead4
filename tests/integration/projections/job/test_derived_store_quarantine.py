"""Rows of a derived view that the cache refuses: quarantined, retried and released by the job."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc.postgres import own_schema
from projections.changes.quarantine import admin as quarantine_admin
from projections.changes.quarantine.admin import KeySelection
from projections.definition.views import DerivedView, Store
from projections.errors import QuarantineFullError
from projections.incremental.delivery import plan_at
from projections.job.tasks.derived_stores import DerivedStoreTask
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.publishing.published_versions import Published
from projections.stores.delta.derived_table import DerivedTable
from projections.stores.valkey.client import CacheServer
from projections.stores.valkey.sink import CacheSink
from projections.verification import truth

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

SCHEMA = pa.schema([("id", pa.int64()), ("total", pa.int64()), ("_deleted", pa.bool_())])


class Shop:
    """A derived view, its table and its rows in the cache."""

    def __init__(self, session: SparkSession, folder: Path, dsn: str, cache_url: str) -> None:
        to = frozenset({Store.TABLE, Store.CACHE})
        self.session = session
        self.view = DerivedView(f"t{uuid4().hex[:12]}", ("id",), to, ("orders",), "SELECT 1")
        nowhere = "127.0.0.1:1"
        config = JobConfig(
            "shop", nowhere, dsn, "", folder, cache_url, nowhere, (), quarantine_rows_max=3
        )
        self.spec = JobSpec(config, derived=(self.view,))
        self.connection = psycopg.connect(dsn, autocommit=True)
        own_schema.ensure(self.connection)
        self._lsn = 100
        self._addresses = config.addresses
        self._table = DerivedTable(config.addresses.tables, self.view.name, self.view.keys)
        self._published = Published(config.addresses.tables, "shop")
        self._server = CacheServer(cache_url, config.addresses.cache_prefix)
        self.task = self.started()

    def started(self) -> DerivedStoreTask:
        return DerivedStoreTask(self.session, self.spec, Store.CACHE)

    def close(self) -> None:
        with closing(CacheSink(self._addresses.cache_url, self._addresses.cache_prefix)) as sink:
            sink.drop(plan_at(self.spec.config, self.view))
        self._server.close()
        self.connection.close()

    def publish(self, *rows: dict[str, Any], replaces_all: bool = False) -> None:
        self._lsn += 10
        given = [{"total": 0, "_deleted": False, **row} for row in rows]
        table = pa.Table.from_pylist(given, schema=SCHEMA)
        self._table.write(table, self._lsn, replaces_all=replaces_all)
        version = DeltaTable(str(self._addresses.tables / self.view.name)).version()
        self._published.publish(1, self._lsn, {self.view.name: version})

    def follow(self) -> bool:
        newest = self._published.latest()
        assert newest is not None
        self.task._look_at = 0.0  # as after its pause
        return self.task.follow(newest)

    def occupy(self, *keys: int) -> None:
        """Puts values that are not ours where the rows of these keys belong."""
        for key in keys:
            self._server.client.rpush(self._name(key), "foreign")

    def free(self, *keys: int) -> None:
        self._server.client.delete(*map(self._name, keys))

    def rows(self) -> dict[int, int]:
        plan = plan_at(self.spec.config, self.view)
        with closing(CacheSink(self._addresses.cache_url, self._addresses.cache_prefix)) as sink:
            return {int(str(row["id"])): int(str(row["total"])) for row in sink.documents(plan)}

    def quarantined(self) -> dict[str, tuple[str, int]]:
        found = quarantine_admin.records(self.connection, "shop", KeySelection(self.view.name))
        return {each.key: (each.state, each.attempts) for each in found}

    def not_compared(self) -> frozenset[str]:
        """The keys that a verification leaves out because they are quarantined."""
        return truth.keys(self.connection, plan_at(self.spec.config, self.view), Store.CACHE)

    def retry(self) -> None:
        quarantine_admin.retry(self.connection, "shop", KeySelection(self.view.name))

    def _name(self, key: int) -> str:
        plan = plan_at(self.spec.config, self.view)
        return f"{self._server.keys(plan).rows}{key}"


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, database: str, cache_url: str) -> Iterator[Shop]:
    with closing(Shop(spark, tmp_path, database, cache_url)) as made:
        yield made


def test_a_refused_row_is_quarantined_until_it_is_written(shop: Shop) -> None:
    shop.publish({"id": 1}, {"id": 2}, {"id": 3}, replaces_all=True)
    shop.occupy(1, 2)
    assert shop.follow()
    assert {'{"id":1}': ("waiting", 1), '{"id":2}': ("waiting", 1)} == shop.quarantined()
    assert {"1", "2"} == shop.not_compared()
    assert {3: 0} == shop.rows()
    assert {} == shop.task.faults

    shop.free(1)
    shop.publish({"id": 1, "total": 5})  # a later change of the row is enough
    assert shop.follow()
    assert {'{"id":2}': ("waiting", 1)} == shop.quarantined()
    assert {1: 5, 3: 0} == shop.rows()

    shop.retry()
    assert shop.follow()  # in vain: the foreign value is still there
    assert {'{"id":2}': ("waiting", 2)} == shop.quarantined()
    shop.task = shop.started()  # another job knows of it
    shop.free(2)
    shop.retry()
    assert shop.follow()
    assert shop.follow()
    assert {} == shop.quarantined()
    assert {1: 5, 2: 0, 3: 0} == shop.rows()


def test_a_row_that_is_gone_leaves_the_quarantine(shop: Shop) -> None:
    shop.publish({"id": 1}, {"id": 2}, {"id": 3}, replaces_all=True)
    shop.occupy(1, 2)
    assert shop.follow()

    shop.free(1, 2)
    shop.publish({"id": 1, "_deleted": True})
    assert shop.follow()
    assert {'{"id":2}'} == shop.quarantined().keys()

    shop.publish({"id": 3, "total": 1}, replaces_all=True)
    assert shop.follow()
    assert {} == shop.quarantined()
    assert {3: 1} == shop.rows()


def test_a_view_with_too_many_refused_rows_is_not_delivered(shop: Shop) -> None:
    shop.publish(*({"id": key} for key in range(6)), replaces_all=True)
    shop.occupy(0, 1, 2, 3)

    assert not shop.follow()

    assert QuarantineFullError.code == shop.task.faults[shop.view.name].code
    assert 4 == len(shop.quarantined())
    shop.free(0, 1, 2, 3)
    assert shop.follow()
    assert {} == shop.quarantined()
    assert dict.fromkeys(range(6), 0) == shop.rows()
