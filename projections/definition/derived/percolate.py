"""Declarations of standing queries: `view.percolate` and `view.unreadable_queries`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from projections.definition.arguments import declaring
from projections.definition.derived.declare import declare, identity_of
from projections.definition.operators.standing_query import Percolation
from projections.definition.views import Store
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from projections.definition.cache_options import CacheOptions
    from projections.definition.derived.declare import Input
    from projections.definition.expectations.expectation import Expectation
    from projections.definition.search_options import SearchOptions
    from projections.definition.views import DerivedView

_ALL: Final = tuple(Store)


@declaring
def percolate(  # noqa: PLR0913  # the options of a view, most of them rare
    name: str,
    of: Input,
    to: Iterable[str] = _ALL,
    *,
    queries: Input,
    query: str,
    words: Sequence[str],
    keep: Sequence[str] = (),
    keys: Sequence[str] = (),
    query_keys: Sequence[str] = (),
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> DerivedView:
    """Declares a view with one row for each document and each standing query that matches it.

    Its columns are the keys of the query, called `query_<name>`, those of the document, and the
    kept columns of the document. `projections.definition.operators.standing_query.parse` documents
    the query syntax; a query that cannot be parsed matches nothing, and appears in a view of
    `unreadable_queries`.

    Args:
        name: The view's name in every store.
        of: The documents: a view.
        to: Any of `table`, `search`, `cache`.
        queries: The queries: a view with one row for each.
        query: Column of `queries` with the query's text.
        words: Columns of a document to search for words. Queries can compare all its columns by
            name: texts, numbers, truth values, dates, times, and lists of texts.
        keep: Columns of the document that a match contains, beside its keys.
        keys: Columns that identify a document; default: those of its declaration.
        query_keys: Columns that identify a query; default: those of its declaration.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations.

    Raises:
        DeclarationError: The declaration is invalid.
    """
    if not words:
        raise DeclarationError(
            f"view {name} has no columns to search for words", hint='words=["title", "description"]'
        )
    _require_apart(name, of, queries)
    percolation = Percolation(
        query,
        tuple(query_keys) or identity_of(name, queries),
        tuple(keys) or identity_of(name, of),
        tuple(words),
        tuple(keep),
    )
    names = [*percolation.keys, *keep]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        raise DeclarationError(
            f"view {name} has two columns named {twice[0]}",
            hint="rename one column in a view.sql(...) between them",
        )
    inputs = [of.name, queries.name]
    return declare(
        name, percolation.keys, to, inputs, search, cache, expect, looked_for=percolation
    )


@declaring
def unreadable_queries(  # noqa: PLR0913
    name: str,
    of: Input,
    to: Iterable[str] = _ALL,
    *,
    queries: Input,
    query: str,
    query_keys: Sequence[str] = (),
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> DerivedView:
    """Declares a view with one row for each standing query that cannot be parsed.

    Its columns are the keys of the query, called `query_<name>`, and `reason`.

    Args:
        name: The view's name in every store.
        of: The documents; a query may name a column that they lack.
        to: Any of `table`, `search`, `cache`.
        queries: The queries: a view with a row for each.
        query: Column of `queries` with the query's text.
        query_keys: Columns that identify a query; default: those of its declaration.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations.

    Raises:
        DeclarationError: The declaration is invalid.
    """
    _require_apart(name, of, queries)
    identity = tuple(query_keys) or identity_of(name, queries)
    refused = Percolation(query, identity, (), (), refused=True)
    inputs = [of.name, queries.name]
    return declare(name, refused.keys, to, inputs, search, cache, expect, looked_for=refused)


def _require_apart(name: str, of: Input, queries: Input) -> None:
    if of.name == queries.name:
        raise DeclarationError(
            f"view {name}: {of.name} cannot contain both the documents and the queries",
            hint="store the queries in a separate table",
        )
