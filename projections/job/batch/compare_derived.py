"""A derived view compared with its query's result: how many rows differ, and which."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as fn

from projections.definition.operators.measures import quoted
from projections.errors import DuplicateKeyError
from projections.incremental.spark.full_diff import (
    COUNT,
    EQUAL,
    IS,
    ROW,
    STORED,
    WAS,
    alike,
    doubled_keys,
    pairs_of,
)
from projections.verification.report import KeyVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


class Counts(NamedTuple):
    """The result of a comparison, in rows.

    Attributes:
        stored: Rows that are stored.
        missing: Rows that are not stored.
        extra: Stored rows that should not be, or surplus copies.
        different: Stored rows with other values.
        duplicated: Rows among `extra` that share a key with another row.
    """

    stored: int
    missing: int
    extra: int
    different: int
    duplicated: int


def counted(result: DataFrame, stored: DataFrame, keys: Sequence[str]) -> Counts:
    """Counts what `differences` describes, in one Spark job.

    Args:
        result: The query's present result.
        stored: The stored rows, with at least the result's columns, of the same types.
        keys: Columns that identify a row; NULL is a value like any other.
    """
    lacks, had = fn.col(ROW).isNull(), fn.col(STORED).isNotNull()
    both = had & ~lacks
    key = fn.struct(*(quoted(f"{IS}{name}") for name in keys))
    numbers = [fn.count(fn.when(each, True)) for each in (had, ~had, lacks, both & ~fn.col(EQUAL))]
    pairs = pairs_of(result, stored, keys)
    row = pairs.agg(
        *numbers, fn.count(fn.when(both, True)) - fn.count_distinct(fn.when(both, key))
    ).collect()[0]
    held, missing, extra, different, twice = row
    return Counts(held, missing, extra + twice, different, twice)


class Wrong(NamedTuple):
    """A key that is not stored as it should be.

    Attributes:
        key: Its values, in the order of the keys.
        verdict: What is wrong.
        columns: In which columns the rows differ.
    """

    key: tuple[Any, ...]
    verdict: KeyVerdict
    columns: tuple[str, ...] = ()


def wrong(
    result: DataFrame, stored: DataFrame, keys: Sequence[str], counts: Counts, limit: int
) -> list[Wrong]:
    """Names some of the rows that `counted` found, of each kind in turn, in one Spark job per kind.

    Args:
        result: The query's present result.
        stored: The stored rows, with at least the result's columns, of the same types.
        keys: Columns that identify a row.
        counts: The result of `counted`.
        limit: How many keys at most.
    """
    lacks, had = fn.col(ROW).isNull(), fn.col(STORED).isNotNull()
    pairs = pairs_of(result, stored, keys)
    now, was = (
        [fn.col(quoted(f"{side}{name}")).alias(name) for name in keys] for side in (IS, WAS)
    )
    unlike = fn.array_compact(
        fn.array(
            *(
                fn.when(~alike(field), fn.lit(field.name)).otherwise(fn.lit(None))
                for field in result.schema
            )
        )
    )
    none = fn.array().cast("array<string>")
    twice = doubled_keys(pairs.where(had & ~lacks).select(*now), keys)
    kinds = {
        KeyVerdict.MISSING: (counts.missing, pairs.where(~had).select(*now, none.alias(EQUAL))),
        KeyVerdict.EXTRA: (
            counts.extra - counts.duplicated,
            pairs.where(lacks).select(*was, none.alias(EQUAL)),
        ),
        KeyVerdict.DIFFERENT: (
            counts.different,
            pairs.where(had & ~lacks & ~fn.col(EQUAL)).select(*now, unlike.alias(EQUAL)),
        ),
        KeyVerdict.DUPLICATED: (
            counts.duplicated,
            twice.select(*map(quoted, keys), none.alias(EQUAL)),
        ),
    }
    there = [verdict for verdict, (count, _) in kinds.items() if count]
    by_verdict: list[list[Wrong]] = []
    for verdict in there:
        rows = kinds[verdict][1].limit(limit).toArrow().to_pylist()
        by_verdict.append(
            [Wrong(tuple(row[n] for n in keys), verdict, tuple(row[EQUAL])) for row in rows]
        )
    taken = [each for row in zip_longest(*by_verdict) for each in row if each is not None]
    return taken[:limit]


def require_unique(rows: DataFrame, keys: Sequence[str], view: str) -> None:
    """Refuses rows if two of them share a key; checks all of them, in one Spark job.

    Args:
        rows: Rows of a view, all or for some keys.
        keys: Columns that identify a row.
        view: The view, for the message.

    Raises:
        DuplicateKeyError: Two rows or more share a key.
    """
    texts = (fn.col(quoted(name)).cast("string") for name in keys)
    duplicate = doubled_keys(rows, keys).select(*texts, COUNT).head()
    if duplicate is None:
        return
    *example, count = duplicate
    raise DuplicateKeyError(
        f"the key of the view {view} does not identify its rows",
        detail=f"keys: {', '.join(keys)}; one of them has {count} rows",
        hint="add columns to keys, or group or filter the query until there is one row for each",
        example=tuple("NULL" if value is None else str(value) for value in example),
    )
