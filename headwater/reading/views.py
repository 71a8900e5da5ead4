"""Views as an application reads them: by key, and with what it has just written.

    views = Views.open()
    token = views.token(store.handle(PlaceOrder(...)).token)     # or views.token() after a commit
    views["orders"].read("42", at_least=token)

Nothing is asked of Kafka or of the job: how far a view is stands in the source, and rows are read
from where they are.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from uuid import UUID

import psycopg

from cdc.position_token import PositionToken
from cdc.postgres import committed, session
from cdc.postgres.errors import PostgresUnavailableError
from cdc.table import ColumnKind
from cdc.values import word_of
from foundation.suggestion import did_you_mean
from headwater.errors import UsageError
from headwater.platform.platform import Platform
from headwater.project.project import open_project, settings_file
from headwater.reading import sql as query
from projections.changes.documents import key_text
from projections.definition.views import DerivedView, Store, maintained_stores, view_of
from projections.publishing import read_barrier
from projections.publishing.published_versions import Published
from projections.publishing.read_barrier import TIMEOUT_S, BehindError, ReadBarrier
from projections.stores.opensearch.searcher import SearchAnswer, Searcher
from projections.stores.valkey.reader import CacheReader
from projections.versions import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from cdc.values import Json
    from eventstore.model.token import Token
    from projections.definition.views import View
    from projections.publishing.read_barrier import Lag
    from projections.stores.opensearch.query import SearchQuery

__all__ = ["BehindError", "PositionToken", "ReadableView", "Views"]

_BY_KEY: Final = (Store.CACHE, Store.SEARCH)
_IDLE_MAX: Final = 8
"""Idle sessions with the source that are kept open for the next wait."""

Other = TypeVar("Other")


class Views:
    """The views of one source, and the derived views that have rows of it beside those of others.

    Threads may share one. Sessions with the source and the stores are opened when they are needed.

    Args:
        platform: The source, and where its servers are.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        project = platform.project
        self._declared: Mapping[str, View | DerivedView] = {**project.views, **project.readers}
        self._cross_reads = project.cross_reads
        self._idle: list[psycopg.Connection[Any]] = []
        self._readers: dict[str, CacheReader] = {}
        self._searcher: Searcher | None = None
        self._opening = threading.Lock()

    @classmethod
    def open(
        cls,
        config: Path | None = None,
        *,
        home: Path | None = None,
        profile: str | None = None,
        source: str | None = None,
    ) -> Self:
        """Opens the views of a source; see `headwater.project.project.open_project`.

        Args:
            config: See there.
            home: See there.
            profile: See there.
            source: The source; default: the only one.

        Raises:
            UsageError: The project has several sources, and none or no such one is named.
        """
        project = open_project(config, home=home, profile=profile)
        part = project.part(source or project.source.name)
        return cls(Platform(part, settings_file(config, home=home)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> ReadableView:
        view = self._declared.get(name)
        if view is None:
            there = "views: " + ", ".join(sorted(self._declared))
            raise UsageError(
                f"no view is named {name[:80]}",
                hint=did_you_mean(name, self._declared, there),
            )
        return ReadableView(self, view)

    @property
    def source(self) -> str:
        """Name of the source."""
        return self._platform.project.source.name

    def token(self, written: Token | psycopg.Connection[Any] | None = None) -> PositionToken:
        """Returns a token for a committed position.

        Args:
            written: Result of a command, or the connection of a committed transaction. Without it,
                the token covers everything so far, by any writer.

        Raises:
            TransactionOpenError: The transaction is not committed yet.
            TransactionAbortedError: It was rolled back.
            NotCapturedError: The source is not captured.
        """
        if written is None:
            with self.reading() as connection:
                return committed.everything(connection, self.source)
        if isinstance(written, psycopg.Connection):
            return committed.everything(written, self.source)
        with self.reading() as connection:
            if written.transaction_id == 0:  # it wrote nothing: what it has read is meant
                return committed.everything(connection, self.source)
            return committed.of_transaction(connection, self.source, written.transaction_id)

    def query(self, sql: str, *, at_least: PositionToken, timeout_s: float = TIMEOUT_S) -> pa.Table:
        """Runs SQL over the views' tables once those that it names have reached a token.

        Args:
            sql: See `headwater.reading.sql.run`.
            at_least: A token.
            timeout_s: Longest wait for all of them, seconds.

        Raises:
            BehindError: A table is behind after that time.
            QueryError: The statement fails.
        """
        self.await_query(sql, at_least, timeout_s)
        root = self._platform.project.home.root
        return query.run(sql, root / "tables", archive=root / "archive" / self.source)

    def await_query(self, sql: str, at_least: PositionToken, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until the tables that a query names have what was written; see `query`."""
        words, deadline = query.words(sql), time.monotonic() + timeout_s
        for name, view in self._declared.items():
            if name in words and Store.TABLE in maintained_stores(view):
                left_s = max(0.0, deadline - time.monotonic())
                self[name].wait_for(at_least, stores={Store.TABLE}, timeout_s=left_s)

    def lag(self, names: Collection[str] = (), timeout_s: float = TIMEOUT_S) -> list[Lag]:
        """Measures how long present commits take to reach each view and store.

        Args:
            names: The views; empty for all. All maintained versions are measured.
            timeout_s: Longest wait, seconds.

        Raises:
            UsageError: No view has that name.
            NotCapturedError: The source is not captured.
        """
        for name in names:
            self[name]  # refuses what there is not
        plans, derived = self._platform.views.taken_over()
        with self.reading() as connection:
            physical_names = registry.active_names(connection, self.source)
            found = [ReadBarrier(self.source, plan.name, plan.to) for plan in plans]
            found += [
                ReadBarrier(
                    self.source,
                    view.name,
                    maintained_stores(view),
                    tuple(physical_names.get(i, i) for i in view.inputs if not self._elsewhere(i)),
                )
                for view in derived
            ]
            wanted = [each for each in found if not names or view_of(each.view) in names]
            return read_barrier.measure(connection, self.token(), wanted, timeout_s)

    def close(self) -> None:
        """Closes all sessions."""
        for connection in self._idle:
            connection.close()
        for reader in self._readers.values():
            reader.close()
        if self._searcher is not None:
            self._searcher.close()
        self._idle, self._readers, self._searcher = [], {}, None

    def cached(self, view: str) -> CacheReader:
        """Returns what reads a view in the cache."""
        with self._opening:
            if view not in self._readers:
                url = self._platform.endpoints.cache_url
                owner = self._cross_reads.readers.get(view, self.source)
                self._readers[view] = CacheReader(url, f"{owner}:", view)
            return self._readers[view]

    @property
    def searcher(self) -> Searcher:
        """Returns the search client."""
        with self._opening:
            if self._searcher is None:
                self._searcher = Searcher(self._platform.endpoints.search_url)
            return self._searcher

    def barrier(self, connection: psycopg.Connection[Any], view: View | DerivedView) -> ReadBarrier:
        """Returns the barrier for the version of a view that readers see."""
        physical_names = dict(registry.active_names(connection, self.source))
        owner = self._cross_reads.readers.get(view.name)
        if owner is not None:  # the versions of its views are noted in that source
            physical_names |= Published(
                self._platform.project.home.root / "tables", owner
            ).current()
        inputs = view.inputs if isinstance(view, DerivedView) else ()
        read = tuple(physical_names.get(each, each) for each in inputs if not self._elsewhere(each))
        return ReadBarrier(self.source, physical_names.get(view.name, view.name), view.to, read)

    def _elsewhere(self, view: str) -> bool:
        """Returns whether an input of a derived view has no rows of this source."""
        return view not in self._declared

    @contextmanager
    def reading(self) -> Iterator[psycopg.Connection[Any]]:
        """Lends a session with the source, in autocommit.

        Raises:
            PostgresError: The source does not answer.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = session.connect(self._platform.source_dsn)
        try:
            yield connection
        except psycopg.OperationalError as error:
            connection.close()
            raise PostgresUnavailableError(
                "the source has ended a session", detail=type(error).__name__
            ) from None
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()


@dataclass(frozen=True, slots=True)
class ReadableView:
    """A view of the project.

    Attributes:
        views: The project's.
        view: Its declaration.
    """

    views: Views
    view: View | DerivedView

    def wait_for(
        self,
        token: PositionToken,
        *,
        stores: Collection[Store] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Waits until the view has everything committed before a token.

        Args:
            token: See `Views.token`.
            stores: The stores; default: all of the view. A derived view also has a table for SQL.
            timeout_s: Longest wait, seconds.

        Raises:
            BehindError: A store is behind after that time; the error names the stage and the
                distance.
            TokenError: The token belongs to another source, is from before a restore, or from the
                future.
            UsageError: The view does not live in one of the stores.
        """
        lives = maintained_stores(self.view)
        if absent := sorted(set(stores) - lives):
            raise UsageError(
                f"view {self.view.name} is not in {absent[0]}",
                hint="its stores: " + ", ".join(sorted(lives)),
            )
        with self.views.reading() as connection:
            barrier = self.views.barrier(connection, self.view)
            barrier.wait(connection, token, stores=stores, timeout_s=timeout_s)

    def read(
        self,
        *key: Json | UUID | Decimal | datetime,
        at_least: PositionToken | None = None,
        timeout_s: float = TIMEOUT_S,
        otherwise: Callable[[], Other] | None = None,
    ) -> Mapping[str, Any] | Other | None:
        """Returns the row of a key from the cache or, for a view without cache, from search.

        Args:
            key: A value for each column of the key, in document form.
            at_least: A token: the row is as of this position or a later one.
            timeout_s: Longest wait for it, seconds.
            otherwise: Called if the view is still behind, for instance to fold the events of a
                stream; its result is returned.

        Returns:
            The row as a document; None if there is none.

        Raises:
            BehindError: The view is behind, and there is no `otherwise`.
            UsageError: The view is in neither store.
        """
        store = next((s for s in _BY_KEY if s in self.view.to), None)
        if store is None:
            raise UsageError(
                f"view {self.view.name} has no store with reads by key",
                hint="read its table with Views.query",
            )
        parts = list(map(_part, key))
        if at_least is not None:
            try:
                self.wait_for(at_least, stores={store}, timeout_s=timeout_s)
            except BehindError:
                if otherwise is None:
                    raise
                return otherwise()
        if store is Store.SEARCH:
            return self.views.searcher.get(self.view.name, key_text(parts))
        return self.views.cached(self.view.name).get(*parts)

    def search(
        self,
        query: SearchQuery | str,
        *,
        at_least: PositionToken | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> SearchAnswer:
        """Searches, after everything written before a token is searchable.

        Args:
            query: See `projections.stores.opensearch.searcher.Searcher.search`.
            at_least: A token.
            timeout_s: Longest wait for it, seconds.

        Raises:
            BehindError: Search is behind after that time.
            SearchError: The search is invalid.
        """
        if at_least is not None:
            self.wait_for(at_least, stores={Store.SEARCH}, timeout_s=timeout_s)
            self.views.searcher.refresh(self.view.name)
        return self.views.searcher.search(self.view.name, query)


def _part(value: Json | UUID | Decimal | datetime) -> Json:
    """A part of a key in its document form."""
    if isinstance(value, datetime):
        kind = ColumnKind.TIMESTAMPTZ if value.tzinfo else ColumnKind.TIMESTAMP
        return word_of(kind)(value.astimezone(UTC) if value.tzinfo else value)
    return str(value) if isinstance(value, UUID | Decimal) else value
