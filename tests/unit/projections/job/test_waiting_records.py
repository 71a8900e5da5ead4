"""Records that wait for a boundary stay stored until the tables or the quarantine have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from projections.errors import SinkUnavailableError
from projections.job import batch_writer
from projections.publishing.boundary import UnpublishedProgress
from projections.publishing.published_versions import Published
from projections.stores.delta.sink import WarehouseSink
from tests.fix_log import PLAN, TOPIC, orders
from tests.support.table_batches import OF_TABLE, config_of_tables, write_batch

if TYPE_CHECKING:
    from pathlib import Path

    from projections.planning.job_config import JobConfig


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    return config_of_tables(tmp_path)


@pytest.mark.parametrize("records_max", [1, 1000])
def test_records_that_waited_are_not_lost_if_the_batch_that_takes_them_fails(
    config: JobConfig, records_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "LARGE_RECORDS", records_max)
    monkeypatch.setattr(batch_writer, "_WAITING_MAX", 1)
    tables = config.addresses.tables
    WarehouseSink(tables).prepare(OF_TABLE)
    first, *others = orders(6)
    Published(tables, PLAN.source).keep_beyond(UnpublishedProgress(), [(TOPIC, [first])])
    away = tables.with_name("away")

    (tables / PLAN.name).rename(away)
    with pytest.raises(Exception, match=SinkUnavailableError.code):
        write_batch(config, others)
    away.rename(tables / PLAN.name)
    write_batch(config, others)

    found = {row["id"] for row in WarehouseSink(tables).documents(OF_TABLE)}
    assert found == {orjson.loads(each.key)["id"] for each in (first, *others) if each.key}
    assert [] == Published(tables, PLAN.source).beyond().waiting
