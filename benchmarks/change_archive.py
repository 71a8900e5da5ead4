"""An archive of changes of orders, as the job's archiver leaves one, made without a source.

Rows are inserted, updated with a skew and now and then deleted, by transactions that follow each
other. Every record has the bytes that the connector would have written; a delete is followed by its
tombstone. What the table would have at the end is known of each row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction, write_deltalake

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.archive.table import SCHEMA, Archive, application
from projections.definition.views import Store
from projections.planning.view_plan import HistoryPlan, ViewPlan

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

TABLE: Final = TableSchema(
    TableName("public", "orders"),
    (
        Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
        Column("customer", ColumnKind.INTEGER, "integer"),
        Column("price", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
        Column("status", ColumnKind.TEXT, "text"),
        Column("note", ColumnKind.TEXT, "text"),
    ),
    ("id",),
)
SOURCE: Final = "shop"
TOPIC: Final = TABLE.table.topic(SOURCE)
PLAN: Final = ViewPlan("orders", SOURCE, TOPIC, TABLE, ("id",), frozenset(Store))
HISTORY: Final = replace(
    PLAN,
    name="orders_history",
    to=frozenset([Store.TABLE]),
    history=HistoryPlan(("customer", "price", "status", "note")),
)

_STATES: Final = pa.array(["placed", "paid", "packed", "shipped"])
_ROWS_PER_TRANSACTION: Final = 10
_FIRST_LSN: Final = 1 << 24
_COMMITTED_US: Final = 1_780_000_000_000_000
_DELETED: Final = 0.05
_FILES: Final = 10
_FILE_CHANGES: Final = 500_000


@dataclass(frozen=True, slots=True)
class ChangeArchive:
    """What was made.

    Attributes:
        folder: The archive.
        changes: How many changes it has; tombstones come on top.
        last: Of each key, the number of its last change; -1 of one that was deleted.
    """

    folder: Path
    changes: int
    last: NDArray[np.int64]

    def expected(self) -> pa.Table:
        """The rows that a mirror has at the end, by rising key."""
        keys = np.flatnonzero(self.last >= 0)
        return rows_of(keys, self.last[keys])


def make(
    folder: Path, changes: int, keys: int, seed: int = 7, *, hot: float = 0.0
) -> ChangeArchive:
    """Makes an archive.

    Args:
        folder: Where to.
        changes: How many changes.
        keys: How many rows are inserted, before all else.
        seed: Which rows change.
        hot: Of the changes after that, how many are of one row.
    """
    random = np.random.default_rng(seed)
    key = np.concatenate(
        [np.arange(keys), (keys * random.random(changes - keys) ** 3).astype(np.int64)]
    )
    if hot:
        key[keys:][random.random(changes - keys) < hot] = keys // 2
    deleted = np.zeros(changes, np.bool_)
    deleted[keys:] = random.random(changes - keys) < _DELETED
    number = np.arange(changes)
    last = np.full(keys, -1, np.int64)
    np.maximum.at(last, key, number)
    exists = ~deleted[last]
    # what was deleted before is inserted by the change after it
    before = np.concatenate([[False], _deleted_before(key, deleted)[1:]])
    created = (number < keys) | before
    Archive(folder).ends({})  # makes the table
    offset = 0
    for part in np.array_split(number, max(_FILES, changes // _FILE_CHANGES)):
        table = _records(key[part], part, deleted[part], created[part], offset)
        offset += table.num_rows
        mark = Transaction(application((TOPIC, 0), "first"), offset)
        properties = CommitProperties(app_transactions=[mark])
        write_deltalake(str(folder), table, mode="append", commit_properties=properties)
    return ChangeArchive(folder, changes, np.where(exists, last, -1))


def _deleted_before(key: NDArray[np.int64], deleted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether the change before each of the same key was a delete."""
    order = np.argsort(key, kind="stable")
    same = np.concatenate([[False], key[order][1:] == key[order][:-1]])
    was = np.concatenate([[False], deleted[order][:-1]]) & same
    found = np.empty(len(key), np.bool_)
    found[order] = was
    return found


def rows_of(key: NDArray[np.int64], number: NDArray[np.int64]) -> pa.Table:
    """Rows as changes of some numbers leave them."""
    cents = pc.utf8_lpad(_text(number % 100), 2, "0")
    price = _joined(_text(number // 100), ".", cents)
    note = pc.binary_join_element_wise(
        "the note of change", pa.array(number).cast(pa.string()), "as long as notes are", " "
    )
    return pa.table(
        {
            "id": pa.array(key, pa.int64()),
            "customer": pa.array(key % 9973, pa.int32()),
            "price": price.cast(pa.decimal128(12, 2)),
            "status": _STATES.take(pa.array(number % 4)),
            "note": note,
        }
    )


def _records(
    key: NDArray[np.int64],
    number: NDArray[np.int64],
    deleted: NDArray[np.bool_],
    created: NDArray[np.bool_],
    first_offset: int,
) -> pa.Table:
    rows = rows_of(key, number)
    first_of = number - number % _ROWS_PER_TRANSACTION
    lsn = _FIRST_LSN + 128 * number
    commit = np.where(first_of > 0, _FIRST_LSN + 128 * first_of - 64, 0)
    order = number % _ROWS_PER_TRANSACTION + 1
    transaction = 1000 + first_of // _ROWS_PER_TRANSACTION
    at_us = _COMMITTED_US + 1000 * first_of
    op = np.where(deleted, "d", np.where(created, "c", "u"))
    ids, after = _text(key), _after(rows)
    key_text = _joined('{"id":', ids, "}")
    live = pa.array(~deleted)
    # a tombstone comes right after its delete
    places = np.repeat(np.arange(len(key)), deleted + 1)
    tomb = np.concatenate([[False], places[1:] == places[:-1]])
    columns = {
        "topic": pa.repeat(TOPIC, len(key)),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), len(key)),
        "recorded_at": pa.array(at_us + 100_000).cast(pa.timestamp("us", "UTC")),
        "source_table": pa.repeat(str(TABLE.table), len(key)),
        "op": pa.array(op),
        "epoch": pa.repeat(pa.scalar(1, pa.int32()), len(key)),
        "commit_lsn": pa.array(commit),
        "lsn": pa.array(lsn),
        "total_order": pa.array(order),
        "transaction_id": pa.array(transaction),
        "committed_at": pa.array(at_us).cast(pa.timestamp("us", "UTC")),
        "key": key_text,
        "before": pc.if_else(live, pa.scalar(None, pa.string()), _key_only(ids)),
        "after": pc.if_else(live, after, pa.scalar(None, pa.string())),
        "source": _source(commit, lsn, transaction, at_us),
        "rest": _rest(transaction, order, op, at_us),
    }
    kept = {"topic", "partition", "recorded_at", "key"}
    taken, gone = pa.array(places), pa.array(tomb)
    made = {
        name: column.take(taken)
        if name in kept
        else pc.if_else(gone, pa.scalar(None, column.type), column.take(taken))
        for name, column in columns.items()
    }
    count = len(places)
    header = pa.array([[{"key": "headwater.epoch", "value": b"1"}]], SCHEMA.field("headers").type)
    made |= {
        "offset": pa.array(np.arange(first_offset, first_offset + count)),
        "headers": header.take(pa.array(np.zeros(count, np.int64))),
        "raw_key": pa.nulls(count, pa.binary()),
        "raw_value": pa.nulls(count, pa.binary()),
        "ingested_on": pa.repeat(pa.scalar(_today(), pa.date32()), count),
    }
    return pa.table([made[name].cast(SCHEMA.field(name).type) for name in SCHEMA.names], SCHEMA)


def _after(rows: pa.Table) -> pa.Array:
    texts = {name: rows[name].cast(pa.string()).combine_chunks() for name in rows.column_names}
    return _joined(
        '{"id":',
        texts["id"],
        ',"customer":',
        texts["customer"],
        ',"price":"',
        texts["price"],
        '","status":"',
        texts["status"],
        '","note":"',
        texts["note"],
        '"}',
    )


def _key_only(ids: pa.Array) -> pa.Array:
    return _joined('{"id":', ids, ',"customer":null,"price":null,"status":null,"note":null}')


def _source(
    commit: NDArray[np.int64],
    lsn: NDArray[np.int64],
    transaction: NDArray[np.int64],
    at_us: NDArray[np.int64],
) -> pa.Array:
    ms, us, place = _text(at_us // 1000), _text(at_us), _text(lsn)
    named = _joined('"\\"', _text(commit), '\\"')
    before = pc.if_else(pa.array(commit > 0), pc.utf8_slice_codeunits(named, 1), "null")
    return _joined(
        '{"version":"3.7.0.Final","connector":"postgresql","name":"shop","ts_ms":',
        ms,
        ',"snapshot":"false","db":"shop","sequence":"[',
        before,
        ',\\"',
        place,
        '\\"]","ts_us":',
        us,
        ',"ts_ns":',
        us,
        '000,"schema":"public","table":"orders","txId":',
        _text(transaction),
        ',"lsn":',
        place,
        ',"xmin":null}',
    )


def _rest(
    transaction: NDArray[np.int64],
    order: NDArray[np.int64],
    op: NDArray[np.str_],
    at_us: NDArray[np.int64],
) -> pa.Array:
    ms, us, number = _text(at_us // 1000 + 20), _text(at_us + 20_000), _text(order)
    return _joined(
        ',"transaction":{"id":"',
        _text(transaction),
        '","total_order":',
        number,
        ',"data_collection_order":',
        number,
        '},"op":"',
        pa.array(op),
        '","ts_ms":',
        ms,
        ',"ts_us":',
        us,
        ',"ts_ns":',
        us,
        "000}",
    )


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _text(numbers: NDArray[np.int64]) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _today() -> date:
    return datetime.now(UTC).date()
