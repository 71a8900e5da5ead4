"""Writes to a table of orders, and who reads views of it meanwhile, in tests of versions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg

from headwater.reading import sql as reading_sql
from projections.stores.opensearch.searcher import Searcher
from projections.stores.valkey.reader import CacheReader
from tests.support.version_steps import Reader

if TYPE_CHECKING:
    from projections.planning.job_config import JobConfig

WATCHED = "paid"


def readers(config: JobConfig, view: str) -> dict[str, Reader]:
    cached = CacheReader(config.cache_url, f"{config.source}:", view)
    searcher = Searcher(config.search_url)

    def in_cache() -> int | None:
        row = cached.get(WATCHED)
        return None if row is None else int(row["latest"])  # type: ignore[call-overload]

    def in_search() -> int | None:
        row = searcher.get(view, WATCHED)
        return None if row is None else int(row["latest"])

    def in_table(name: str, condition: str) -> int | None:
        sql = f"SELECT latest FROM {name} WHERE {condition}"  # noqa: S608
        found = reading_sql.run(sql, config.addresses.tables)
        return int(found["latest"][0].as_py()) if found.num_rows else None

    return {
        "cache": Reader(in_cache),
        "search": Reader(in_search),
        "table": Reader(lambda: in_table(view, f"status = '{WATCHED}'")),
        "follower": Reader(lambda: in_table(f"{config.source}_most", "one = 1")),
    }


class writing:  # noqa: N801  # a context
    """Writes greater and greater numbers to rows, and moves some of them, until it is left."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(30)

    def _write(self) -> None:
        number = 0
        with psycopg.connect(self._database, autocommit=True) as connection:
            while not self._enough.wait(0.02):
                number += 1
                connection.execute("UPDATE orders SET number = %s WHERE id = 3", (number,))
                connection.execute(
                    "UPDATE orders SET status = CASE status WHEN 'paid' THEN 'placed' ELSE 'paid'"
                    " END, total = total + 1 WHERE id = %s AND id <> 3",
                    (1 + number % 299,),
                )
