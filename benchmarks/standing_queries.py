"""Ten thousand standing queries, matched against documents as they come.

Ours is the job's own way: documents arrive boundary by boundary, each with some seconds' worth of
them, and at each the view of matches is brought there: its table is committed before the next.
What it has in the end is compared with what sets of Python give for the same rows before a figure
counts. The first boundaries fill and warm; the rate is that of all others together.

The peer is the percolator of OpenSearch, in one index with the same queries, asked for the matches
of as many documents at a time as it takes best, and keeping nothing of what it finds. Words are
drawn by Zipf's law for documents, and less skewed for queries, half of which have a condition.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa
from opensearchpy import OpenSearch

from benchmarks.derived_run import DerivedRun, spark_session
from benchmarks.result import Report, at_least, rate
from benchmarks.streaming import say
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from projections.definition.operators.standing_query import Percolation
from projections.definition.views import DerivedView, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENTS_PER_S: Final = 1_000.0
PEER_RATIO: Final = 1.0

_QUERIES: Final = 10_000
_QUERIES_QUICK: Final = 1_000
_AT_ONCE: Final = 5_000
_AT_ONCE_QUICK: Final = 500
_WARM: Final = 2
_BOUNDARIES: Final = 6
_VOCABULARY: Final = 20_000
_WORDS: Final = 30
_PRICE_MAX: Final = 1_000
_PEER_PART: Final = 50
"""Documents in one request to the peer."""

_INDEX: Final = "standing"
_HOW: Final = Percolation("wanted", ("id",), ("sku",), ("title",))


@dataclass(frozen=True, slots=True)
class _Query:
    words: tuple[str, ...]
    below: int | None

    @property
    def text(self) -> str:
        price = [] if self.below is None else [f"price<{self.below}"]
        return " ".join([*self.words, *price])

    @property
    def engine(self) -> dict[str, Any]:
        match = {"match": {"title": {"query": " ".join(self.words), "operator": "and"}}}
        price = [] if self.below is None else [{"range": {"price": {"lt": self.below}}}]
        return {"bool": {"must": [match], "filter": price}}


@dataclass(frozen=True, slots=True)
class _Document:
    sku: int
    title: str
    price: int


def run(quick: bool) -> Report:
    """Measures; `quick` takes a tenth of the queries and documents."""
    wanted, at_once = (_QUERIES_QUICK, _AT_ONCE_QUICK) if quick else (_QUERIES, _AT_ONCE)
    draw = np.random.default_rng(1)
    queries = _queries(draw, wanted)
    documents = _documents(draw, at_once * (_WARM + _BOUNDARIES))
    expected = _expected(queries, documents)
    say(f"{len(expected):,} matches of {len(documents):,} documents")
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        ours, found = _ours(Path(folder), queries, documents, at_once)
    timed = documents[_WARM * at_once :]
    peer, told = _peer(queries, timed)
    first = timed[0].sku
    right = found == expected and told == {pair for pair in expected if pair[1] >= first}
    what = f"{wanted:,} standing queries, documents/s"
    return Report(
        "standing_queries",
        right,
        (
            at_least(f"{what} into a table", ours=ours, target=DOCUMENTS_PER_S),
            rate(
                f"{what}, beside a percolator that keeps nothing",
                ours=ours,
                peer=peer,
                limit=None,
                target=PEER_RATIO,
            ),
        ),
    )


def _queries(draw: np.random.Generator, count: int) -> list[_Query]:
    sizes = draw.integers(1, 4, count)
    words = np.minimum(draw.zipf(1.2, (count, 3)) + draw.integers(0, 400, (count, 3)), _VOCABULARY)
    prices = draw.integers(1, _PRICE_MAX, count)
    return [
        _Query(
            tuple(f"w{number}" for number in own[:size]),
            int(price) if place % 2 else None,
        )
        for place, (own, size, price) in enumerate(zip(words, sizes, prices, strict=True))
    ]


def _documents(draw: np.random.Generator, count: int) -> list[_Document]:
    words = draw.zipf(1.2, (count, _WORDS)) % _VOCABULARY
    prices = draw.integers(1, _PRICE_MAX, count)
    return [
        _Document(sku, " ".join(f"W{number}" for number in own), int(price))
        for sku, (own, price) in enumerate(zip(words, prices, strict=True))
    ]


def _expected(queries: list[_Query], documents: list[_Document]) -> set[tuple[int, int]]:
    """Pairs of query and document, by the sets of documents that have each word."""
    having: dict[str, set[int]] = {}
    for document in documents:
        for word in document.title.lower().split():
            having.setdefault(word, set()).add(document.sku)
    none: set[int] = set()
    return {
        (number, sku)
        for number, query in enumerate(queries)
        for sku in set.intersection(*(having.get(word, none) for word in query.words))
        if query.below is None or documents[sku].price < query.below
    }


def _ours(
    place: Path, queries: list[_Query], documents: list[_Document], at_once: int
) -> tuple[float, set[tuple[int, int]]]:
    """Documents per second, and all pairs in the view's table."""
    view = DerivedView(
        "found",
        _HOW.keys,
        frozenset([Store.TABLE]),
        ("documents", "queries"),
        text=repr(_HOW),
        percolation=_HOW,
    )
    asked = pa.table({"id": range(len(queries)), "wanted": [query.text for query in queries]})
    table = _table(documents)
    inputs = {"queries": asked, "documents": table.slice(0, 0)}
    seconds = []
    with spark_session(place) as session:
        run = DerivedRun(session, place, (view,), inputs)
        for start in range(0, len(documents), at_once):
            run.add("documents", table.slice(start, at_once))
            seconds.append(run.bring()["found"])
    say("seconds of each boundary: " + ", ".join(f"{each:.1f}" for each in seconds))
    kept = run.table("found")
    pairs = set(zip(kept["query_id"].to_pylist(), kept["sku"].to_pylist(), strict=True))
    return at_once * _BOUNDARIES / sum(seconds[_WARM:]), pairs


def _table(documents: list[_Document]) -> pa.Table:
    names = ("sku", "title", "price")
    return pa.table({name: [getattr(each, name) for each in documents] for name in names})


def _peer(queries: list[_Query], documents: list[_Document]) -> tuple[float, set[tuple[int, int]]]:
    """Documents per second of the engine's percolator, and all pairs that it tells."""
    with _engine() as client:
        properties = {
            "query": {"type": "percolator"},
            "title": {"type": "text"},
            "price": {"type": "long"},
        }
        settings = {"number_of_shards": 2, "number_of_replicas": 0, "max_result_window": 100_000}
        client.indices.create(
            index=_INDEX, body={"settings": settings, "mappings": {"properties": properties}}
        )
        lines: list[bytes] = []
        for number, query in enumerate(queries):
            lines += [
                orjson.dumps({"index": {"_id": str(number)}}),
                orjson.dumps({"query": query.engine}),
            ]
        client.bulk(index=_INDEX, body=b"\n".join(lines) + b"\n", refresh=True)
        _asked(client, documents[:_PEER_PART], len(queries))
        began = time.monotonic()
        found: set[tuple[int, int]] = set()
        for start in range(0, len(documents), _PEER_PART):
            found |= _asked(client, documents[start : start + _PEER_PART], len(queries))
        return len(documents) / (time.monotonic() - began), found


def _asked(client: OpenSearch, documents: list[_Document], most: int) -> set[tuple[int, int]]:
    """The pairs of some documents, all of them in one percolate query."""
    given = [{"title": each.title, "price": each.price} for each in documents]
    body = {
        "size": most,
        "_source": False,
        "query": {
            "constant_score": {"filter": {"percolate": {"field": "query", "documents": given}}}
        },
    }
    hits = client.search(index=_INDEX, body=body, request_timeout=300)["hits"]["hits"]
    return {
        (int(hit["_id"]), documents[slot].sku)
        for hit in hits
        for slot in hit["fields"]["_percolator_document_slot"]
    }


@contextmanager
def _engine() -> Iterator[OpenSearch]:
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        wanted = {ServiceName.SEARCH: Spawned()}
        endpoints = runtime.up(RuntimeSpec(home=home, services=wanted, lifeline=True))
        try:
            yield OpenSearch(endpoints.search_url)
        finally:
            runtime.down(home)
