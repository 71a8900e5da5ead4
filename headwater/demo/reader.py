"""Readers of views, which access the stores as applications and analysts do.

They use none of the code that writes the views, so that a fault there cannot hide itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import opensearchpy
import pyarrow as pa
import redis
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from projections.changes.documents import key_text
from projections.publishing.published_versions import sources

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.demo.freshness import ProbeReader
    from headwater.demo.workload import Probe, SumReader

_TIMEOUT_S: Final = 5.0
_PAGE: Final = 2_000


@dataclass(frozen=True, slots=True)
class ViewEndpoints:
    """Addresses at which the views can be read.

    Attributes:
        tables: Folder with one Delta table per view.
        search_url: OpenSearch.
        cache_url: Valkey.
        cache_prefix: Namespace of the project in the cache.
    """

    tables: Path
    search_url: str = field(repr=False)
    cache_url: str = field(repr=False)
    cache_prefix: str

    def probe_readers(self, probe: Probe) -> dict[str, ProbeReader]:
        """Readers of one row's counter, by store."""
        return {
            "cache": CacheProbe(self, probe),
            "search": SearchProbe(self, probe),
            "table": TableProbe(self, probe),
        }

    def sum_readers(self) -> dict[str, SumReader]:
        """Readers of a column's sum, by store."""
        return {"table": self.sum_of_table, "search": self.sum_of_index, "cache": self.sum_of_cache}

    def sum_of_table(self, view: str, column: str) -> int:
        """Sums a column by SQL over the Delta table."""
        total = f'SELECT sum("{column}") AS total FROM t'  # noqa: S608
        found = _rows(DeltaTable(self.tables / view), total)
        return int(found[0]["total"] or 0)

    def sum_of_index(self, view: str, column: str) -> int:
        """Sums a column by an aggregation over the alias."""
        body = {"size": 0, "aggs": {"total": {"sum": {"field": column}}}}
        client = _search_client(self)
        try:
            client.indices.refresh(index=view)
            return int(client.search(index=view, body=body)["aggregations"]["total"]["value"])
        finally:
            client.close()

    def sum_of_cache(self, view: str, column: str) -> int:
        """Sums a column by reading every key of the view."""
        total = 0
        with redis.Redis.from_url(self.cache_url, socket_timeout=_TIMEOUT_S) as client:
            keys = list(set(client.scan_iter(f"{self.cache_prefix}{view}:*", count=_PAGE)))
            for start in range(0, len(keys), _PAGE):
                values: Any = client.mget(keys[start : start + _PAGE])
                total += sum(json.loads(value)[column] or 0 for value in values if value)
        return total


class CacheRow:
    """Gets the row as applications do: the active version and the row in one transaction."""

    def __init__(self, places: ViewEndpoints, probe: Probe, timeout_s: float = _TIMEOUT_S) -> None:
        self._client = redis.Redis.from_url(places.cache_url, socket_timeout=timeout_s)
        self._prefix, self._view = places.cache_prefix, probe.view
        self._key = key_text(list(probe.key.values()))
        self._place = probe.view

    def __call__(self) -> dict[str, Any] | None:
        """Returns the row.

        Raises:
            redis.RedisError: The cache refuses the request or does not answer.
        """
        while True:
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.hget(f"{self._prefix}_current", self._view)
                pipeline.get(f"{self._prefix}{self._place}:{self._key}")
                current, value = pipeline.execute()
            place = current.decode() if current else self._view
            if place == self._place:
                row: dict[str, Any] | None = json.loads(value) if value else None
                return row
            self._place = place  # another version is active now, which is rare


class CacheProbe:
    """Gets the row by its key, in the active version."""

    def __init__(self, places: ViewEndpoints, probe: Probe) -> None:
        self._row = CacheRow(places, probe)
        self._column = probe.column

    def __call__(self) -> int | None:
        """Returns the counter."""
        try:
            row = self._row()
        except redis.RedisError:
            return None
        return _count(row[self._column]) if row else None


class SearchProbe:
    """Finds the row by a search over the alias, not by a get, which sees a row too early."""

    def __init__(self, places: ViewEndpoints, probe: Probe) -> None:
        self._client = _search_client(places)
        self._view, self._column = probe.view, probe.column
        self._body = {
            "size": 1,
            "query": {"ids": {"values": [key_text(list(probe.key.values()))]}},
            "_source": [probe.column],
        }

    def __call__(self) -> int | None:
        """Returns the counter."""
        try:
            found = self._client.search(index=self._view, body=self._body)
        except (opensearchpy.OpenSearchException, OSError):
            return None
        hits = found["hits"]["hits"]
        return _count(hits[0]["_source"][self._column]) if hits else None


class TableProbe:
    """Queries the published commit of the active Delta table, as `headwater query` does."""

    def __init__(self, places: ViewEndpoints, probe: Probe) -> None:
        self._tables, self._view = places.tables, probe.view
        self._sql = counter_sql(probe)
        self._table: DeltaTable | None = None
        self._read: tuple[str, int] | None = None

    def __call__(self) -> int | None:
        """Returns the counter."""
        try:
            published = self._published()
            if published is None:
                return None
            if self._table is None or self._read != published:
                place, version = self._read = published
                self._table = DeltaTable(self._tables / place, version=version)
            rows = _rows(self._table, self._sql)
        except (DeltaError, OSError):
            self._table = None
            return None
        return _count(rows[0]["counted"]) if rows else None

    def _published(self) -> tuple[str, int] | None:
        """Returns the Delta table that queries of the view read now, and its commit."""
        for published in sources(self._tables):  # there is one
            places, newest = published.current(), published.newest()
            if newest is not None and self._view in (found := newest.by_view(places)):
                place, table = found[self._view]
                return place, table.version
        return None


def counter_sql(probe: Probe) -> str:
    """Returns a query of the counter over a table `t`; the result column is `counted`."""
    wanted = " AND ".join(f'"{name}" = {_literal(value)}' for name, value in probe.key.items())
    return f'SELECT "{probe.column}" AS counted FROM t WHERE {wanted}'  # noqa: S608


def _rows(table: DeltaTable, sql: str) -> list[dict[str, Any]]:
    found = QueryBuilder().register("t", table).execute(sql).read_all()
    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


def _search_client(places: ViewEndpoints) -> Any:
    return opensearchpy.OpenSearch(hosts=[places.search_url], timeout=_TIMEOUT_S, max_retries=0)


def _literal(value: object) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


def _count(value: object) -> int | None:
    # an initial row may have no counter yet
    text = str(value).strip()
    return int(text) if text.isdecimal() else None
