"""Views of standing queries: matches documents with queries through common terms.

Both are split into terms and joined by them, and the resulting pairs are then tested. A changed
document is therefore compared only with the queries that share a term with it, and a new query with
such documents; the rest is like any join.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from projections.definition.operators.measures import quoted
from projections.definition.operators.standing_query import (
    Document,
    FieldKind,
    QueryParser,
    anchors,
    matches,
    needs,
    terms,
    words_of,
)
from projections.errors import ViewQueryError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from projections.definition.operators.standing_query import Percolation

_TERM: Final = "_headwater_term"
_TEXTS: Final = "_headwater_texts"
_FIELD: Final = "_headwater_field"
_TERMS: Final = "_headwater_terms"
_QUERY: Final = "_headwater_query"
_SOUGHT_FOR: Final = "_headwater_sought"
_ANCHOR: Final = "_headwater_anchor"
_SOUGHT: Final = StructType(
    [
        StructField("anchors", ArrayType(StringType())),
        StructField("needed", ArrayType(StringType())),
        StructField("enough", BooleanType()),
    ]
)
_DOCUMENTS_KEPT: Final = 4_096


def percolated(documents: DataFrame, queries: DataFrame, percolation: Percolation) -> DataFrame:
    """Returns a row for each document and each query that matches it.

    Raises:
        ViewQueryError: A column is missing, or has no words.
    """
    _require(documents, (*percolation.document_keys, *percolation.keep), "the documents")
    _require(queries, (*percolation.query_keys, percolation.query), "the queries")
    _require_text(queries.schema, (percolation.query,))
    _require_text(documents.schema, percolation.words)
    fields = fields_of(documents.schema)
    identity = [fn.col(quoted(name)).alias(f"query_{name}") for name in percolation.query_keys]
    asked = queries.select(*identity, fn.col(quoted(percolation.query)).alias(_QUERY))
    called = [fn.col(quoted(f"query_{name}")) for name in percolation.query_keys]
    if percolation.refused:
        reason = fn.udf(_refusals(fields), StringType(), useArrow=False)
        refused = asked.select(*called, reason(_QUERY).alias("reason"))
        return refused.where(fn.col("reason").isNotNull())
    of_query = fn.udf(_query_terms(fields), _SOUGHT, useArrow=False)
    of_document = fn.udf(
        _terms_of_documents(tuple(fields)), ArrayType(StringType()), useArrow=False
    )
    match = fn.udf(_matching(fields), BooleanType(), useArrow=False)
    columns = dict.fromkeys((*percolation.document_keys, *percolation.keep))
    own = [fn.col(quoted(name)) for name in columns]
    met = documents.select(*own, *_seen_by_queries(fields, percolation))
    seen = [fn.col(name) for name in met.columns[len(own) :]]
    with_terms = met.select(*own, *seen, of_document(*seen).alias(_TERMS))
    sought = asked.select(*called, _QUERY, of_query(_QUERY).alias(_SOUGHT_FOR))
    # outer: otherwise Spark would compute the terms twice, first to check for any
    pairs = with_terms.select("*", fn.explode_outer(_TERMS).alias(_TERM)).join(
        sought.select("*", fn.explode_outer(f"{_SOUGHT_FOR}.anchors").alias(_ANCHOR)),
        fn.col(_TERM) == fn.col(_ANCHOR),
    )
    # few pairs are left for Python: those with all terms, where that is not sufficient
    needed = fn.forall(f"{_SOUGHT_FOR}.needed", lambda term: fn.array_contains(_TERMS, term))
    open_ = ~fn.col(f"{_SOUGHT_FOR}.enough")
    judged = match(*(fn.when(open_, column) for column in (fn.col(_QUERY), *seen)))
    matching = pairs.where(needed & judged).select(*called, *own)
    return matching.distinct()  # a query that shares two terms with a document occurs twice


def fields_of(schema: StructType) -> dict[str, FieldKind]:
    """Returns the columns of documents that queries can compare.

    Args:
        schema: All their columns.
    """
    kinds = {column.name: _kind(column.dataType) for column in schema}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(of: DataType) -> FieldKind | None:
    if isinstance(of, NumericType):
        return FieldKind.NUMBER
    if isinstance(of, ArrayType):
        return FieldKind.TEXTS if isinstance(of.elementType, StringType) else None
    return _KINDS.get(type(of))


_KINDS: Final[Mapping[type[DataType], FieldKind]] = {
    StringType: FieldKind.TEXT,
    BooleanType: FieldKind.BOOLEAN,
    DateType: FieldKind.DATE,
    TimestampType: FieldKind.TIME,
    TimestampNTZType: FieldKind.TIME,
}


def _seen_by_queries(fields: Mapping[str, FieldKind], percolation: Percolation) -> list[Column]:
    """Returns the values that queries read of a document, as Python values: texts, then fields.

    Each is a column: Python receives separate columns faster than one nested column.
    """
    texts = fn.array(*(fn.col(quoted(name)) for name in percolation.words))
    made = (_comparable(kind, name) for name, kind in fields.items())
    return [texts.alias(_TEXTS), *(each.alias(f"{_FIELD}_{n}") for n, each in enumerate(made))]


def _comparable(kind: FieldKind, name: str) -> Column:
    column = fn.col(quoted(name))
    if kind is FieldKind.DATE:
        return fn.unix_date(column)
    return fn.unix_micros(column.cast("timestamp")) if kind is FieldKind.TIME else column


def _seen(names: Sequence[str]) -> Callable[[Sequence[Any]], Document]:
    """Builds documents from columns; pairs of one document are adjacent."""
    kept: Any = lru_cache(_DOCUMENTS_KEPT)(
        lambda texts: tuple(words_of(text) for text in texts if text is not None)
    )

    def seen(columns: Sequence[Any]) -> Document:
        texts, *values = columns
        return Document(kept(tuple(texts)), dict(zip(names, values, strict=True)))

    return seen


def _query_terms(
    fields: Mapping[str, FieldKind],
) -> Callable[[str | None], tuple[list[str], list[str], bool]]:
    reader = _once(lambda: QueryParser(fields))

    def of(text: str | None) -> tuple[list[str], list[str], bool]:
        query = reader().query(text)
        if query is None:
            return [], [], False
        by, (needed, enough) = anchors(query), needs(query)
        # the shared term need not be checked again
        return sorted(by), sorted(needed - by if len(by) == 1 else needed), enough

    return of


def _refusals(fields: Mapping[str, FieldKind]) -> Callable[[str | None], str | None]:
    reader = _once(lambda: QueryParser(fields))
    return lambda text: reader().refusal(text)


def _terms_of_documents(names: Sequence[str]) -> Callable[..., list[str]]:
    seen = _once(lambda: _seen(names))
    return lambda *columns: sorted(terms(seen()(columns)))


def _matching(fields: Mapping[str, FieldKind]) -> Callable[..., bool]:
    reader, seen = _once(lambda: QueryParser(fields)), _once(lambda: _seen(tuple(fields)))

    def match(text: str | None, *columns: Any) -> bool:
        if text is None:  # the terms are sufficient
            return True
        query = reader().query(text)
        return query is not None and matches(query, seen()(columns))

    return match


def _once(make: Callable[[], Any]) -> Callable[[], Any]:
    """Creates a value on first use in a worker, so that it need not be sent there."""
    made: list[Any] = []

    def one() -> Any:
        if not made:
            made.append(make())
        return made[0]

    return one


def _require(frame: DataFrame, names: Sequence[str], frame_name: str) -> None:
    if missing := [name for name in names if name not in frame.columns]:
        raise ViewQueryError(
            f"{frame_name} have no column {missing[0]}",
            detail="columns: " + ", ".join(frame.columns),
            hint="correct the declaration of the view",
        )


def _require_text(schema: StructType, names: Sequence[str]) -> None:
    for name in names:
        data_type = schema[name].dataType if name in schema.names else None
        if not isinstance(data_type, StringType):
            raise ViewQueryError(
                f"column {name} is not a text",
                detail="it does not exist" if data_type is None else data_type.simpleString(),
                hint="convert it to text in a view.sql(...) between them",
            )
