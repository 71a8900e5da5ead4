"""Records that wait for a boundary stay stored until the tables or the quarantine have them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pytest

from projections.definition.views import Store
from projections.errors import SinkUnavailableError
from projections.job import batch_writer
from projections.job.batch_writer import BatchWriter
from projections.planning.job_config import JobConfig
from projections.publishing.batch_fence import BatchFence
from projections.publishing.boundary import UnpublishedProgress
from projections.publishing.published_versions import Published
from projections.stores.delta.sink import WarehouseSink
from tests.fix_log import PLAN, TOPIC, orders

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from projections.changes.record import Record

OF_TABLE = replace(PLAN, to=frozenset([Store.TABLE]))


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    made = JobConfig.of_tables(PLAN.source, tmp_path, ())
    made.addresses.tables.mkdir(parents=True)
    return made


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
        _write(config, others)
    away.rename(tables / PLAN.name)
    _write(config, others)

    found = {row["id"] for row in WarehouseSink(tables).documents(OF_TABLE)}
    assert found == {orjson.loads(each.key)["id"] for each in (first, *others) if each.key}
    assert [] == Published(tables, PLAN.source).beyond().waiting


def _write(config: JobConfig, records: Sequence[Record]) -> None:
    turn = BatchFence(Published(config.addresses.tables, PLAN.source).folder).begin()
    writer = BatchWriter(Store.TABLE, (OF_TABLE,), config.addresses, config.ledger, turn=turn)
    columns = {
        name: [getattr(record, name) for record in records] for name in batch_writer.RECORD_COLUMNS
    }
    batch = pa.RecordBatch.from_pydict({"topic": [TOPIC] * len(records), **columns})
    for _ in writer.write([batch]):
        pass
