"""Hand-over: the job's queries adopt a version that was filled from the archive.

The archive ends at one offset; a store's query is at another, nearly always a later one. Running
queries continue, and the job replays the gap into the new version alone (`job.tasks.handover`). A
query that starts goes back instead and reads the gap again for all views of those topics. That is
harmless, since every row is guarded by its version. If the query is killed before it reaches its
old position, it goes back again, since the version joins until it is in every store.

`HandoverProgress` measures a hand-over for the command that waits for it. The job records what it
replays for a version alone. Where a query goes back, its counters grow; while the table of a
derived view is written, the table grows. A version that shows none of these signs, and appears in
no further store, makes no progress.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import structlog

from cdc.broker.topics import extent
from cdc.postgres import session
from foundation.atomic_file import write_atomically
from projections.common.fault import Fault
from projections.definition.views import Store
from projections.errors import RecordsLostError
from projections.publishing import positions
from projections.versions import registry
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    import psycopg

    from cdc.broker.topics.extent import PartitionId
    from projections.common.offsets import Offsets
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan

_log = structlog.get_logger(__name__)


def checked(spec: JobSpec) -> JobSpec:
    """Leaves out versions that can no longer be adopted because records that they lack are gone.

    Raises:
        BrokerError: The broker does not answer.
        PostgresError: The source does not answer.
    """
    if not spec.joining:
        return spec
    coming = {plan.name: plan for plan in spec.plans if plan.name in spec.joining}
    topics = frozenset(topic for plan in coming.values() for topic in plan.topics)
    bounds = extent.bounds(spec.config.bootstrap, topics)
    late = {
        physical_name
        for physical_name, plan in coming.items()
        if too_late(plan, spec.joining[physical_name], bounds)
    }
    if not late:
        return spec
    with session.connect(spec.config.source_dsn) as connection:
        for physical_name in sorted(late):
            error = RecordsLostError(
                f"the job cannot adopt version {physical_name}: records that it lacks are gone",
                detail="topics keep less than has passed since it was filled",
                hint="headwater view rebuild continues with the present archive, or reports"
                " why it cannot",
            )
            registry.note_fault(connection, spec.config.source, physical_name, Fault.of(error))
            _log.warning("a version cannot be adopted", version=physical_name, code=error.code)
    return replace(
        spec,
        plans=tuple(plan for plan in spec.plans if plan.name not in late),
        joining={
            physical_name: ends
            for physical_name, ends in spec.joining.items()
            if physical_name not in late
        },
    )


def too_late(plan: ViewPlan, ends: Offsets, bounds: Mapping[PartitionId, tuple[int, int]]) -> bool:
    """Returns whether records that a version lacks are gone.

    Args:
        plan: The version.
        ends: Offset after the last record of each partition that it was filled with.
        bounds: First offset of each partition, and the one after its last record.
    """
    return any(
        first > ends.get(partition, 0)
        for partition, (first, _) in bounds.items()
        if partition[0] in plan.topics
    )


def rewound(spec: JobSpec, store: Store, at: Offsets) -> Offsets:
    """Returns the offsets from which a query must start so that joining versions lack nothing.

    Args:
        spec: The job.
        store: The query's store.
        at: The offset after the last record of each partition that it has finished.
    """
    offsets = dict(at)
    for plan in spec.plans_in(store):
        if (ends := spec.joining.get(plan.name)) is None:
            continue
        # the version has no records of a partition that was not in the archive
        own = {p: ends.get(p, 0) for p in offsets if p[0] in plan.topics}
        offsets |= {partition: min(offsets[partition], end) for partition, end in own.items()}
    return offsets


def settle(connection: psycopg.Connection[object], spec: JobSpec) -> None:
    """Records which versions are adopted: those with a position in every store.

    Positions that the last batches of a dropped version left behind are deleted.
    """
    versions = registry.moving(connection, spec.config.source)
    coming = {each.physical_name for each in versions if each.state is VersionState.JOINING}
    dropped = {each.physical_name for each in versions if each.state is VersionState.DROPPED}
    if not coming and not dropped:
        return
    there = {(p.view, p.store) for p in positions.read(connection)}
    kept = {plan.name for plan in spec.plans}
    for physical_name in sorted((dropped - kept) & {view for view, _ in there}):
        registry.forget(connection, spec.config.source, physical_name)
    for plan in spec.plans:
        if plan.name in coming and all((plan.name, store) in there for store in plan.to):
            before = [VersionState.JOINING]
            registry.move(connection, spec.config.source, plan.name, VersionState.HELD, before)
            _log.info("a version is maintained beside the active one", version=plan.name)


LOOK_S: Final = 1.0
"""Shortest time between two reads of the files, seconds."""

_FILE: Final = "takeover.json"


class HandoverOffsets(NamedTuple):
    """The progress of a version in one store.

    Attributes:
        offsets: The sum of the offsets up to which it has the partitions; it grows with each
            record.
        left: Approximate number of records that it lacked at that time.
    """

    offsets: int
    left: int


def note(config: JobConfig, physical_name: str, taken: Mapping[Store, HandoverOffsets]) -> None:
    """Writes a version's progress to a file; one version is adopted at a time."""
    path = _path(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    stores = {str(store): list(each) for store, each in taken.items()}
    write_atomically(path, orjson.dumps({"place": physical_name, "stores": stores}))


def read(config: JobConfig, physical_name: str) -> dict[Store, HandoverOffsets]:
    """Returns the last recorded progress; empty if it belongs to another version."""
    document = _read(_path(config))
    if document.get("place") != physical_name:
        return {}
    return {Store(store): HandoverOffsets(*each) for store, each in document["stores"].items()}


class HandoverProgress:
    """Measures the progress of one hand-over.

    Args:
        config: The job's configuration.
        physical_name: That of the version.
    """

    def __init__(self, config: JobConfig, physical_name: str) -> None:
        self._config = config
        self._physical_name = physical_name
        self._moved_at = time.monotonic()
        self._look_at = 0.0
        self._best: dict[Store, int] = {}
        self._seen: object = None
        self._left: dict[Store, int] = {}

    @property
    def still_s(self) -> float:
        """Seconds since the last progress."""
        return time.monotonic() - self._moved_at

    def look(self, there: Collection[Store]) -> None:
        """Checks for progress.

        Args:
            there: Stores in which the version has a position. Writes there reach every view, so
                they are no progress towards the other stores.
        """
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        taken = {
            s: each for s, each in read(self._config, self._physical_name).items() if s not in there
        }
        self._left = {store: each.left for store, each in taken.items()}
        moved = False
        for store, each in taken.items():
            # repeated restarts are no progress
            if each.offsets > self._best.get(store, -1):
                self._best[store] = each.offsets
                moved = True
        seen = sorted(there), self._records(there), self._table_bytes(there)
        if moved or seen != self._seen:
            self._seen = seen
            self._moved_at = time.monotonic()

    def report(self) -> str:
        """Describes the records that the version lacks; empty if unknown."""
        return "".join(
            f"; about {left:,} records are left for {store}"
            for store, left in sorted(self._left.items())
            if left
        )

    def _records(self, there: Collection[Store]) -> dict[str, int]:
        """Returns the number of the version's records that queries of other stores have read."""
        queries: Mapping[str, Any] = _read(self._config.status_file).get("queries", {})
        return {
            store: query["views"][self._physical_name]["records"]
            for store, query in queries.items()
            if store not in there and self._physical_name in query.get("views", {})
        }

    def _table_bytes(self, there: Collection[Store]) -> int:
        if Store.TABLE in there:
            return 0
        files = (self._config.addresses.tables / self._physical_name).rglob("*.parquet")
        return sum(_size(path) for path in files)


def _path(config: JobConfig) -> Path:
    return config.run / _FILE


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed meanwhile
        return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    return document
