"""Erasure: removes keys of a table from every place that keeps their data.

It has three parts, and each may be repeated. The first removes the data of the keys: their records
in the archive, their states in histories, their quarantined records. Once all tables are published
without them, the second part removes earlier versions: files, logs and segments that no reader may
read any more, and older records of topics. A read restores the present rows of the table meanwhile;
these stay.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

import orjson
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc.broker.errors import TopicRefusedError
from cdc.broker.topics import truncation
from cdc.values import decode
from projections.changes.quarantine import table as quarantine_table
from projections.common.file_lock import WriterLock
from projections.definition.views import Store, maintained_stores, view_of
from projections.erasure.archive import ArchivedTopic
from projections.erasure.certificate import Erased
from projections.erasure.residue import expunge, forget_past, rewrite_files
from projections.erasure.unreached import made_from
from projections.errors import SinkUnavailableError
from projections.publishing.other_sources import active_elsewhere, readers
from projections.publishing.published_content import SourcePosition
from projections.publishing.published_versions import Published, names_of_others, promised
from projections.publishing.stable_table import StableTable
from projections.stores.delta.sink import WarehouseSink
from projections.stores.factory import open_sink
from projections.stores.opensearch.client import SearchEngine

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from cdc.broker.topics.extent import PartitionId
    from cdc.table import TableName
    from projections.definition.views import DerivedView
    from projections.erasure.archive import Through
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.publishing.other_sources import Reader

_MERGE_S: Final = 600.0
_REWRITE_S: Final = 300.0
_BESIDE: Final = (".deleted", ".changes")


class Erasure:
    """The places with data of keys of one table.

    Args:
        spec: The job, its views bound.
        table: The table.
        topic: Its topic.
        through: Position up to which the keys are erased.
    """

    def __init__(self, spec: JobSpec, table: TableName, topic: str, through: Through) -> None:
        self._spec = spec
        self._through = through
        self._plans = [plan for plan in spec.plans if plan.schema.table == table]
        self.topics = sorted({topic, *(each for plan in self._plans for each in plan.topics)})

    @property
    def views(self) -> list[str]:
        """Views of the table."""
        return sorted({plan.view for plan in self._plans})

    @property
    def followers(self) -> list[str]:
        """Returns views derived from these, directly or indirectly."""
        derived = [(view_of(view.name), view.inputs) for view in self._spec.derived]
        return sorted(made_from(self.views, derived) - set(self.views))

    @property
    def places(self) -> frozenset[tuple[str, Store]]:
        """Returns the physical names of versions of the table's views, with their stores.

        This includes views that combine it with other sources, which other jobs maintain.
        """
        own = frozenset((plan.name, store) for plan in self._plans for store in plan.to)
        reading = self._views_elsewhere()
        active = active_elsewhere(self._spec.config.addresses.tables, self._spec.config.source)
        return own.union(
            (active[view.name][0], store)
            for view in reading
            if view.name in active
            for store in maintained_stores(view)
        )

    def archived(self) -> list[ArchivedTopic]:
        """The table's topics in the archive."""
        return [ArchivedTopic(self._spec.config.archive, topic) for topic in self.topics]

    def known(self, texts: Collection[str]) -> list[Erased]:
        """Removes the data of keys.

        Raises:
            SinkError: A place cannot be written.
            QuarantineDownError: The database does not answer.
        """
        records = sum(topic.erase(texts, self._through) for topic in self.archived())
        erased = [Erased("archive", "records", records)]
        version = self._through.version
        with closing(WarehouseSink(self._spec.config.addresses.tables)) as sink:
            for plan in self._spec.plans_in(Store.TABLE):
                if plan.history is not None and plan.name in {each.name for each in self._plans}:
                    count = sink.erase(plan, _values(plan, texts), version)
                    erased.append(Erased(f"history {plan.name}", "changes", count))
        with quarantine_table.connect(self._spec.config.ledger) as connection:
            counts = [
                quarantine_table.erase(connection, self._spec.config.source, topic, texts, version)
                for topic in self.topics
            ]
        return [*erased, Erased("quarantine", "records", sum(counts))]

    def behind(self, now: Through) -> list[str]:
        """Returns the tables that are not published in their present state.

        A derived view keeps the versions of its inputs from which it was computed.

        Args:
            now: Position that they must reach.
        """
        places = [plan.name for plan in self._spec.plans_in(Store.TABLE)]
        places += [view.name for view in self._spec.derived]
        tables, source = self._spec.config.addresses.tables, self._spec.config.source
        unpublished = Published(tables, source).behind(places, now.epoch, now.lsn.value)
        wanted = SourcePosition(now.epoch, now.lsn.value)
        made = self._readers()
        unpublished += [
            f"{r.physical_name} of source {r.source}"
            for r in made
            if r.table.others[source] < wanted
        ]
        for owner in sorted(
            {self._spec.cross_reads.readers[v.name] for v in self._views_elsewhere()}
        ):
            latest = Published(tables, owner).latest()
            # a view that is being created has no table yet
            at = None if latest is None else latest.others.get(source)
            if at is None or at < wanted:
                unpublished.append(f"the derived views of source {owner}")
        return unpublished

    def past(self) -> list[Erased]:
        """Removes earlier versions; all views must be published in their present state.

        Raises:
            QuarantineDownError: The database does not answer.
            SinkError: A place cannot be read or written.
            StableTableError: A stable path cannot be updated.
        """
        erased = [self._past_of_archive(), *self._past_of_tables()]
        with quarantine_table.connect(self._spec.config.ledger) as connection:
            quarantine_table.vacuum(connection)  # rows of derived views were released meanwhile
        search = self._places(Store.SEARCH)
        if search:
            with closing(SearchEngine(self._spec.config.search_url)) as engine:
                merged = expunge(engine, search, _MERGE_S)
            count, left = len(merged.indices), merged.left
            erased.append(Erased("search", "indices merged", count, complete=not left))
        if self._places(Store.CACHE):
            done = rewrite_files(self._spec.config.cache_url, _REWRITE_S)
            erased.append(Erased("cache", "files rewritten", int(done), complete=done))
        return erased

    def left(self, texts: Collection[str]) -> list[Erased]:
        """Asks the stores by key which erased rows they still have.

        Raises:
            SinkError: A store cannot be read.
        """
        remaining = []
        for store in sorted({store for _, store in self.places}):
            count = 0
            with closing(open_sink(store, self._spec.config.addresses)) as sink:
                for plan in self._plans:
                    if store in plan.to:
                        held = sink.stored(plan, _values(plan, texts))
                        former = (h for h in held if h.version <= self._through.version)
                        count += sum(len(each.documents) for each in former)
            remaining.append(Erased(str(store), "rows of the keys left", count, complete=not count))
        return remaining

    def cut(self, before: Mapping[PartitionId, int], deadline_s: float) -> list[Erased]:
        """Truncates the topics.

        Args:
            before: Offset of each partition before which all records are removed.
            deadline_s: Longest wait for the brokers to remove files, seconds.

        Raises:
            BrokerUnreachableError: No broker answers.
        """
        if not before:
            return []
        bootstrap = self._spec.config.bootstrap
        names = sorted({topic for topic, _ in before})
        with ExitStack() as altered:
            for topic in names:
                altered.enter_context(truncation.files_go_at_once(bootstrap, topic))
            await_removed = altered.enter_context(truncation.removal(bootstrap, before.keys()))
            try:
                truncation.cut_off(bootstrap, before)
            except TopicRefusedError:
                # a compacted topic: compaction removes older records
                items = "partitions left to compaction"
                return [Erased("topics", items, len(before), complete=False)]
            left = await_removed(deadline_s)
        return [Erased("topics", "partitions cut off", len(before), complete=not left)]

    def _past_of_archive(self) -> Erased:
        done = ArchivedTopic(self._spec.config.archive, self.topics[0]).forget_past()
        return Erased("archive", "former versions", int(done), complete=done)

    def _past_of_tables(self) -> Iterable[Erased]:
        root = self._spec.config.addresses.tables
        published = Published(root, self._spec.config.source)
        made = self._readers()
        owners = {view_of(each.physical_name): Published(root, each.source) for each in made}
        for group in (published, *owners.values()):
            group.forget_former()
        others = names_of_others(root, self._spec.config.source) - {
            each.physical_name for each in made
        }
        readable = sorted((root.parent / "views").glob("[!.]*"))
        stable_paths = [
            path for path in readable if path.name not in {view_of(each) for each in others}
        ]
        try:
            for path in stable_paths:
                stable = StableTable(root, path.name)
                stable.follow(owners.get(path.name, published))
                stable.clean(0)
            folders = [path for path in sorted(root.glob("[!.]*")) if _is_table(path)]
            tables = [path for path in folders if _place(path.name) not in others]
            for path in tables:
                with WriterLock(root / f".{_place(path.name)}.lock", wait=True):
                    if _is_table(path):  # a version may have been dropped meanwhile
                        forget_past(path, promised(root, path.name))
        except (DeltaError, OSError) as error:
            raise SinkUnavailableError(
                "old versions of a table cannot be removed", detail=type(error).__name__
            ) from None
        return [
            Erased("tables", "tables without former versions", len(tables)),
            Erased("stable paths", "tables without former versions", len(stable_paths)),
        ]

    def _places(self, store: Store) -> list[str]:
        own = {plan.name for plan in self._spec.plans_in(store)}
        own |= {view.name for view in self._spec.derived if store in view.to}
        return sorted(own | {place for place, where in self.places if where is store})

    def _views_elsewhere(self) -> list[DerivedView]:
        """Returns declared views that combine the table's with those of other sources."""
        derived = self._spec.cross_reads.derived
        made = made_from(
            [*self.views, *self.followers], [(view.name, view.inputs) for view in derived]
        )
        return [view for view in derived if view.name in made]

    def _readers(self) -> list[Reader]:
        """Returns the published views of other sources' jobs that read the table's views."""
        tables, source = self._spec.config.addresses.tables, self._spec.config.source
        return readers(tables, source, {*self.views, *self.followers})


def _values(plan: ViewPlan, texts: Collection[str]) -> list[tuple[object, ...]]:
    """Returns the values of keys; columns may have had other names when a record was written."""
    columns = [plan.schema.by_name[name] for name in plan.schema.key]
    fields = [list(orjson.loads(text).values()) for text in sorted(texts)]
    return [
        tuple(decode(column, value) for column, value in zip(columns, of_key, strict=True))
        for of_key in fields
        if len(of_key) == len(columns)
    ]


def _is_table(path: Path) -> bool:
    return DeltaTable.is_deltatable(str(path))


def _place(table: str) -> str:
    """Returns the physical name whose lock protects a table."""
    for end in _BESIDE:
        table = table.removesuffix(end)
    return table
