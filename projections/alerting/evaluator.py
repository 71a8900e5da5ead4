"""Finds the rows of a view that meet an alert's condition, at the newest published boundary."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from foundation.json_numbers import with_number_texts
from projections.changes.documents import key_text
from projections.definition.columns import VERSION_COLUMN
from projections.errors import AlertConditionError
from projections.publishing.published_versions import Published
from projections.stores.delta.table_query import answer, kind_of_reason, of_storage, reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta
    from pathlib import Path

    from cdc.lsn import Lsn
    from projections.definition.alert import Alert

ROWS_MAX: Final = 100_000
"""Most rows that may meet a condition: each evaluation compares all of them."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MatchingRows:
    """The rows that meet a condition.

    Attributes:
        position: The boundary at which the view was read.
        until: Time until which each row is recent, by the text of its key; None for no limit.
    """

    position: Lsn
    until: Mapping[str, datetime | None]
    _alert: Alert
    _answer: pa.Table = field(repr=False)

    def rows(self, keys: Collection[str]) -> dict[str, Document]:
        """Returns rows by key, as documents; rows that do not meet the condition are missing.

        Raises:
            AlertConditionError: A row cannot be written.
        """
        wanted = {key: index for index, key in enumerate(self.until) if key in keys}
        # not `take`: it does not support text views, which the query returns for texts
        parts = [self._answer.slice(index, 1) for index in wanted.values()]
        rows = pa.concat_tables([self._answer.slice(0, 0), *parts])
        return dict(zip(wanted, _documents(self._alert, rows), strict=True))


def matching_rows(
    tables: Path, source: str, alert: Alert, key: Sequence[str], now: datetime
) -> MatchingRows | None:
    """Returns the rows of a view that meet an alert's condition.

    Args:
        tables: Folder of the views' tables.
        source: Name of the source.
        alert: The alert.
        key: Columns that identify a row.
        now: The time, by which rows are recent.

    Returns:
        The rows; None if the view has not been published yet.

    Raises:
        AlertConditionError: The condition is invalid, too many rows meet it, or a key has two rows.
    """
    published = Published(tables, source)
    latest = published.latest()
    read = None if latest is None else latest.by_view(published.current()).get(alert.view)
    if read is None:
        return None
    place, table = read
    try:
        table_at = DeltaTable(tables / place, version=table.version)
        query = _query(alert, pa.schema(table_at.schema()), now)
        rows = answer(QueryBuilder().register(alert.view, table_at), query).read_all()
    except TableNotFoundError:
        return None  # the view is being recomputed
    except DeltaError as error:
        raise AlertConditionError(
            f"the condition of alert {alert.name} cannot be evaluated",
            detail=reason(error).splitlines()[0][:200],
            hint="where=... takes the SQL of `headwater query`; test the condition there",
        ) from None
    except (OSError, pa.ArrowException) as error:
        if of_storage(error):
            return None  # the table was replaced meanwhile
        raise AlertConditionError(
            f"the condition of alert {alert.name} cannot be evaluated for a row:"
            f" {kind_of_reason(error)}",
            hint="nullif(n, 0) prevents a division by zero, try_cast(... AS ...) a failed cast",
        ) from None
    if len(rows) > ROWS_MAX:
        raise AlertConditionError(
            f"more than {ROWS_MAX:,} rows meet the condition of alert {alert.name}",
            hint=(
                'use a narrower condition, or recent=Recent("at", "7 days") for a view that '
                "only grows"
            ),
        )
    if lacking := [name for name in key if name not in rows.column_names]:
        raise AlertConditionError(
            f"view {alert.view} lacks columns of its key", detail=", ".join(lacking)
        )
    until = dict(zip(_keys(alert, rows, key), _until(alert, rows), strict=True))
    if len(until) < len(rows):
        raise AlertConditionError(
            f"view {alert.view} has several rows for one key", detail=", ".join(key)
        )
    return MatchingRows(table.applied_through, until, alert, rows)


def _query(alert: Alert, schema: pa.Schema, now: datetime) -> str:
    condition = f"({alert.where}\n)" if alert.where else ""  # it may end with a comment
    if alert.recent is not None:
        column = alert.recent.column
        if column not in schema.names or not pa.types.is_timestamp(schema.field(column).type):
            raise AlertConditionError(
                f"view {alert.view} has no time column {column} for recent",
                detail=", ".join(f.name for f in schema if pa.types.is_timestamp(f.type)),
                hint="use one of these columns",
            )
        begin = now.astimezone(UTC) - alert.recent.length
        recent = f"\"{column}\" > TIMESTAMP '{begin:%Y-%m-%dT%H:%M:%S.%f}Z'"
        condition = f"{condition} AND {recent}" if condition else recent
    where = f" WHERE {condition}" if condition else ""
    return f'SELECT * FROM "{alert.view}"{where} LIMIT {ROWS_MAX + 1}'  # noqa: S608


def _keys(alert: Alert, answer: pa.Table, key: Sequence[str]) -> Iterator[str]:
    rows = _documents(alert, answer.select(list(key)))
    return (key_text([row[name] for name in key]) for row in rows)


def _until(alert: Alert, answer: pa.Table) -> list[datetime | None]:
    """Returns the time until which each row is recent."""
    if alert.recent is None:
        return [None] * len(answer)
    with _written(alert):
        times = answer[alert.recent.column].to_pylist()
    return [_later(time, alert.recent.length) for time in times]


def _later(time: datetime, length: timedelta) -> datetime | None:
    try:
        return (time if time.tzinfo else time.replace(tzinfo=UTC)) + length
    except OverflowError:
        return None


def _documents(alert: Alert, answer: pa.Table) -> list[Document]:
    with _written(alert):
        return [_document(row) for row in answer.to_pylist()]


@contextmanager
def _written(alert: Alert) -> Iterator[None]:
    """Converts errors of serialisation to an `AlertConditionError`."""
    try:
        yield
    except (ArithmeticError, ValueError, TypeError, pa.ArrowException) as error:
        raise AlertConditionError(
            f"a row that meets the condition of alert {alert.name} cannot be serialised",
            detail=type(error).__name__,
            hint=("exclude the row with the condition; its value may be a time beyond year 9999"),
        ) from None


def _document(row: Mapping[str, Any]) -> Document:
    options = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
    document: Document = orjson.loads(
        orjson.dumps(with_number_texts(row), default=_word, option=options)
    )
    document.pop(VERSION_COLUMN, None)
    return document


def _word(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)
