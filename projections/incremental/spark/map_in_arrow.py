"""`DataFrame.mapInArrow` for columns of any name: PySpark itself takes a dot for a field's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    MapFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, function: MapFunction, schema: StructType | str) -> DataFrame:
    """Passes the batches of each task through a function, in a Spark worker.

    Args:
        rows: The rows.
        function: Takes batches with the columns of `rows`, and yields batches of `schema`.
        schema: The columns that it yields, in their order.
    """
    numbered = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    return numbered.mapInArrow(_Named(tuple(rows.columns), function), schema)


@dataclass(frozen=True, slots=True)
class _Named:
    """Gives the columns their names back."""

    names: tuple[str, ...]
    function: MapFunction

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(batch.rename_columns(list(self.names)) for batch in batches)
