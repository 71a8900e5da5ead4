"""Batches of the tables' query, written as one of Spark's workers writes them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from projections.definition.views import Store
from projections.job.batch_writer import BatchWriter
from projections.job.record_runs import RECORD_COLUMNS
from projections.planning.job_config import JobConfig
from projections.publishing.batch_fence import BatchFence
from projections.publishing.published_versions import Published
from tests.fix_log import PLAN, TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from projections.changes.record import Record
    from projections.publishing.boundary import CompleteThrough

OF_TABLE = replace(PLAN, to=frozenset([Store.TABLE]))


def config_of_tables(home: Path) -> JobConfig:
    """Returns the configuration of a job whose tables are below a folder."""
    made = JobConfig.of_tables(PLAN.source, home, ())
    made.addresses.tables.mkdir(parents=True)
    return made


def write_batch(
    config: JobConfig, records: Sequence[Record], reach: CompleteThrough | None = None
) -> None:
    """Writes records of the view's topic as one batch, after which the table reaches so far."""
    turn = BatchFence(Published(config.addresses.tables, PLAN.source).folder).begin()
    writer = BatchWriter(
        Store.TABLE, (OF_TABLE,), config.addresses, config.ledger, reach=reach, turn=turn
    )
    columns = {name: [getattr(record, name) for record in records] for name in RECORD_COLUMNS}
    batch = pa.RecordBatch.from_pydict({"topic": [TOPIC] * len(records), **columns})
    for _ in writer.write([batch]):
        pass
