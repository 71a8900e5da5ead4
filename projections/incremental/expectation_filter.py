"""Applies a derived view's expectations to its rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as kinds

from projections.definition.columns import DELETED_FIELD
from projections.definition.expectations.checker import Inspection
from projections.definition.expectations.evaluator import Type
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.errors import ViewHaltedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], Type], ...]] = (
    (kinds.is_boolean, Type.BOOLEAN),
    (kinds.is_integer, Type.NUMBER),
    (kinds.is_floating, Type.NUMBER),
    (kinds.is_decimal, Type.NUMBER),
    (kinds.is_string, Type.TEXT),
    (kinds.is_large_string, Type.TEXT),
    (kinds.is_date, Type.DATE),
    (kinds.is_time, Type.TIME),
)


@dataclass(frozen=True, slots=True)
class ExpectationFilter:
    """Decides which rows a derived view has, by the same rules as for a mirror.

    Attributes:
        view: Name of the view.
        expectations: Its expectations.
        failed: Number of rows so far that did not meet an expectation, by its name.
    """

    view: str
    expectations: tuple[Expectation, ...]
    failed: Counter[str] = field(default_factory=Counter)

    def marked(self, rows: pa.Table) -> pa.Table:
        """Returns the rows, with those that the view excludes marked as deleted.

        Raises:
            ConditionError: A condition does not fit the columns.
            ViewHaltedError: A row does not meet an expectation that pauses the view.
        """
        if not self.expectations:
            return rows
        gone = rows[DELETED_FIELD].to_pylist()
        unmet = self._unmet(rows, gone)
        halting = next((each for each in unmet if each and each.on_fail is OnFail.FAIL), None)
        if halting is not None:
            raise ViewHaltedError(
                f"view {self.view} is paused: a row does not meet an expectation",
                detail=f"expectation {halting.name}",
                hint="the view continues when its query returns no such row",
            )
        out = [was or each is not None for was, each in zip(gone, unmet, strict=True)]
        place = rows.column_names.index(DELETED_FIELD)
        return rows.set_column(place, DELETED_FIELD, pa.array(out, pa.bool_()))

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields batches without the rows that the view excludes."""
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            unmet = self._unmet(rows, [False] * rows.num_rows)
            yield batch.filter(pa.array([each is None for each in unmet], pa.bool_()))

    def _unmet(self, rows: pa.Table, gone: list[bool]) -> list[Expectation | None]:
        columns = {each.name: _type(each.type) for each in rows.schema}
        columns.pop(DELETED_FIELD, None)
        inspection = Inspection(self.view, self.expectations, columns)
        wanted = [name for name in columns if name in inspection.named]
        values = rows.select(wanted).to_pylist() if wanted else [{}] * rows.num_rows
        unmet = [
            None if was else inspection.unmet(row) for was, row in zip(gone, values, strict=True)
        ]
        self.failed.update(inspection.failed)
        return unmet


def _type(kind: pa.DataType) -> Type:
    if kinds.is_timestamp(kind):
        return Type.TIMESTAMP if kind.tz is None else Type.TIMESTAMPTZ
    return next((column_type for fits, column_type in _TYPES if fits(kind)), Type.OTHER)
