"""Which rows of a view meet an alert's condition, at the boundary that readers see now."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from projections.documents import key_text
from projections.errors import AlertConditionError
from projections.plan import VERSION_COLUMN
from projections.published import Published

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cdc.lsn import Lsn
    from projections.alert import Alert

ROWS_MAX: Final = 10_000
"""Rows that may meet an alert's condition: nobody is helped by being told of more at once."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Met:
    """The rows that meet a condition.

    Attributes:
        position: The boundary at which the view was read.
        rows: The rows by the text of their key, in the form of documents.
    """

    position: Lsn
    rows: Mapping[str, Document]


def met(tables: Path, source: str, alert: Alert, key: Sequence[str]) -> Met | None:
    """Asks a view for the rows that meet an alert's condition.

    Args:
        tables: Folder of the views' tables.
        source: Name of the source.
        alert: The alert.
        key: Columns that identify a row.

    Returns:
        None if the view has nothing that readers could see: that says nothing of its rows.

    Raises:
        AlertConditionError: The condition is wrong, too many rows meet it, or a key has two rows.
    """
    published = Published(tables, source)
    latest = published.latest()
    read = None if latest is None else latest.by_view(published.current()).get(alert.view)
    if read is None:
        return None
    place, table = read
    condition = f" WHERE {alert.where}" if alert.where else ""
    query = f'SELECT * FROM "{alert.view}"{condition} LIMIT {ROWS_MAX + 1}'  # noqa: S608
    try:
        found = DeltaTable(tables / place, version=table.version)
        answer = QueryBuilder().register(alert.view, found).execute(query).read_all()
    except TableNotFoundError:
        return None  # it is being made anew
    except DeltaError as error:
        raise AlertConditionError(
            f"the condition of alert {alert.name} cannot be asked",
            detail=str(error).splitlines()[0][:200],
            hint="where=... is SQL as `headwater query` takes it: ask there first",
        ) from None
    rows = _documents(alert, pa.table(answer))
    if len(rows) > ROWS_MAX:
        raise AlertConditionError(
            f"more than {ROWS_MAX:,} rows meet the condition of alert {alert.name}",
            hint="a narrower condition, or a view that counts them",
        )
    if rows and (lacking := [name for name in key if name not in rows[0]]):
        raise AlertConditionError(
            f"view {alert.view} lacks columns of its key", detail=", ".join(lacking)
        )
    by_key = {key_text([row[name] for name in key]): row for row in rows}
    if len(by_key) < len(rows):
        raise AlertConditionError(
            f"view {alert.view} has several rows for one key", detail=", ".join(key)
        )
    return Met(table.applied_through, by_key)


def _documents(alert: Alert, answer: pa.Table) -> list[Document]:
    try:
        return [_document(row) for row in answer.to_pylist()]
    except (ArithmeticError, ValueError, TypeError, pa.ArrowException) as error:
        raise AlertConditionError(
            f"a row that meets the condition of alert {alert.name} cannot be written",
            detail=type(error).__name__,
            hint="such as a time beyond year 9999: a condition that leaves it out",
        ) from None


def _document(row: Mapping[str, Any]) -> Document:
    options = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
    document: Document = orjson.loads(orjson.dumps(row, default=_word, option=options))
    document.pop(VERSION_COLUMN, None)
    return document


def _word(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)
