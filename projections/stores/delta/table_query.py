"""Queries of Delta tables by their library's engine, and the errors of such a query in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from deltalake import QueryBuilder

_CAUSE: Final = "caused by\n"
_AROUND: Final = re.compile(
    r"(?:(?:External|Parquet|Arrow|Compute|Execution|Cast|Parser) error: |External: "
    r"|Error evaluating filter predicate: )+"
)
_INNER: Final = re.compile(r"ArrowError\((\w+)(?:\(\"(?P<text>.*)\"\))?, Some\(\"", re.DOTALL)
_NO_FUNCTION: Final = re.compile(r"No function matches [^\n]*")
_STORAGE: Final = re.compile(r"Object Store|No such file|os error", re.IGNORECASE)
_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_KINDS: Final = (
    (re.compile(r"divide ?by ?zero", re.IGNORECASE), "a division by zero"),
    (re.compile(r"cast ?error|parse ?r? ?error", re.IGNORECASE), "a value that cannot be cast"),
    (re.compile(r"overflow", re.IGNORECASE), "a number that is too large"),
)


def answer(engine: QueryBuilder, sql: str) -> pa.RecordBatchReader:
    """Returns the rows of a query, which are computed as they are read.

    Reading them raises `pa.ArrowException`, whose text may contain a value of a row. The library's
    own reader would raise a bare `Exception`.

    Args:
        engine: With the tables that the query names.
        sql: One SELECT.

    Raises:
        DeltaError: The query cannot be planned.
    """
    return pa.RecordBatchReader.from_stream(engine.execute(sql))


def reason(error: Exception) -> str:
    """Returns the cause of a query's error, which may contain a value of a row."""
    text = _AROUND.sub("", str(error).rpartition(_CAUSE)[2])
    if unmatched := _NO_FUNCTION.search(text):  # after a list of attempts
        return unmatched[0]
    if inner := _INNER.match(text):
        text = _AROUND.sub("", inner["text"] or _WORDS.sub(" ", inner[1]).lower())
    return text


def of_storage(error: Exception) -> bool:
    """Returns whether a file of the table could not be read, for instance as it was removed."""
    return _STORAGE.search(str(error)) is not None


def kind_of_reason(error: Exception) -> str:
    """Describes the cause of an error that was raised as rows were read, without their values."""
    text = str(error).partition("'")[0]
    for pattern, words in _KINDS:
        if pattern.search(text):
            return words
    return "a value that the query does not allow for"
