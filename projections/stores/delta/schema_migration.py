"""Migrates a Delta table to the present columns of its view."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Field, Schema, write_deltalake
from pyarrow import dataset

from projections.stores.delta.table_format import schema_of, set_limits, writing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalake import DeltaTable


def reshape(table: DeltaTable, wanted: pa.Schema, older_names: Mapping[str, Sequence[str]]) -> bool:
    """Gives a table exactly these columns, in one commit; returns whether it had others.

    Adding columns is free. If a column is dropped or changes its type, every row is rewritten:
    values that the new type represents exactly stay, and others are NULL until the snapshot that
    such a change requests delivers them.

    Args:
        table: The table.
        wanted: The columns that it must have.
        older_names: Former names of each column, the likeliest first.
    """
    set_limits(table, wanted)
    had = schema_of(table)
    lacking = [field for field in wanted if field.name not in had.names]
    present_names = _present_names(had, wanted, older_names)
    if len(had) + len(lacking) == len(wanted) and all(
        had.field(field.name).type == field.type for field in wanted if field not in lacking
    ):
        if lacking:
            fields = Schema.from_arrow(pa.schema(lacking)).fields
            table.alter.add_columns([Field(each.name, each.type) for each in fields])
        return bool(lacking)
    # pyarrow opens the files itself: the library cannot read a table while it writes it
    parts = table.metadata().partition_columns
    files = dataset.dataset(
        table.file_uris(),
        schema=had,
        format="parquet",
        partitioning=dataset.partitioning(
            pa.schema([had.field(name) for name in parts]), flavor="hive"
        ),
    )
    rows = pa.RecordBatchReader.from_batches(wanted, _rewritten(files, wanted, present_names))
    write_deltalake(
        table,
        rows,
        mode="overwrite",
        schema_mode="overwrite",
        writer_properties=writing(wanted),
    )
    table.update_incremental()
    return True


def loses(table: DeltaTable, wanted: pa.Schema, older_names: Mapping[str, Sequence[str]]) -> bool:
    """Returns whether a migration drops or retypes columns."""
    had = schema_of(table)
    present_names = _present_names(had, wanted, older_names)
    remaining = {present_names.get(field.name, field.name): field.type for field in wanted}
    return any(field.name not in remaining or remaining[field.name] != field.type for field in had)


def _present_names(
    had: pa.Schema, wanted: pa.Schema, older_names: Mapping[str, Sequence[str]]
) -> dict[str, str | None]:
    """Returns the present name of each missing column; None for a new one."""
    gone = set(had.names) - set(wanted.names)
    return {
        field.name: next((old for old in older_names.get(field.name, ()) if old in gone), None)
        for field in wanted
        if field.name not in had.names
    }


def _rewritten(
    files: dataset.Dataset, wanted: pa.Schema, present_names: Mapping[str, str | None]
) -> Iterator[pa.RecordBatch]:
    for batch in files.to_batches():
        arrays = []
        for field in wanted:
            name = present_names.get(field.name, field.name)
            missing = name is None
            values = pa.nulls(batch.num_rows, field.type) if missing else batch.column(name)
            arrays.append(_cast(values, field.type))
        if all(
            field.nullable or not array.null_count
            for field, array in zip(wanted, arrays, strict=True)
        ):
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(values.type) and pa.types.is_decimal(kind):
        # otherwise it would be refused because of the greatest possible integers
        values = pc.cast(values, pa.decimal128(38, kind.scale))
    try:
        return pc.cast(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(values), kind)
