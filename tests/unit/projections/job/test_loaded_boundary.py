"""A table that was loaded from the source is published at no boundary that its rows are beyond."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from deltalake import DeltaTable

from cdc.position import version_of
from projections.changes.record import Record
from projections.publishing.boundary import CompleteThrough
from projections.publishing.published_versions import Published
from projections.stores.delta.sink import WarehouseSink
from projections.stores.delta.table_format import LOADED_AT
from tests.fix_log import PLAN, envelope
from tests.support.table_batches import OF_TABLE, config_of_tables, write_batch

if TYPE_CHECKING:
    from pathlib import Path

ENDS = (0x1100, 0x1200, 0x1300)
"""Ends of the log at three batches, in bytes."""


def loaded(tables: Path) -> None:
    """Makes the view's table as one whose load reached to the second of the ends."""
    WarehouseSink(tables).prepare(OF_TABLE)
    table = DeltaTable(str(tables / PLAN.name))
    loaded_at = {LOADED_AT: str(version_of(1, ENDS[1]))}
    table.alter.set_table_properties(loaded_at, raise_if_not_exists=False)


def read(epoch: int, number: int) -> Record:
    """A row that a snapshot has read."""
    row = {"id": number, "note": "n", "big": "b"}
    value = envelope("r", 0x1000, row)
    return Record(orjson.dumps({"id": number}), value, str(epoch), 0, number)


def test_its_first_boundary_is_where_the_load_was(tmp_path: Path) -> None:
    config = config_of_tables(tmp_path)
    tables = config.addresses.tables
    loaded(tables)

    published = []
    for number, end in enumerate(ENDS):
        write_batch(config, [read(1, number)], CompleteThrough(1, end, {PLAN.name: 0}))
        latest = Published(tables, PLAN.source).latest()
        published.append(None if latest is None else latest.views[PLAN.name].lsn)

    assert [None, *ENDS[1:]] == published


def test_a_load_before_the_source_was_restored_holds_nothing_back(tmp_path: Path) -> None:
    config, end = config_of_tables(tmp_path), ENDS[0]
    tables = config.addresses.tables
    loaded(tables)

    write_batch(config, [read(2, 1)], CompleteThrough(2, end, {PLAN.name: 0}))

    latest = Published(tables, PLAN.source).latest()
    assert latest is not None
    assert (2, end) == (latest.epoch, latest.views[PLAN.name].lsn)
