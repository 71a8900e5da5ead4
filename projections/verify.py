"""Verification: every view in every store, compared with the source row by row.

In the cache, so are the lookups, counters and leaderboards beside the rows. The comparison is of
one moment: the source is read in a single snapshot, and writes to it must rest while the stores are
read. Rows are compared by a hash of their document form, so a million rows fit in memory.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import psycopg

from projections import positions, source_rows
from projections.cache_beside import Beside
from projections.derived_delivery import DerivedDelivery, plan_at
from projections.documents import DocumentForm, key_text
from projections.errors import NotCaughtUpError, VerificationError
from projections.published import Published
from projections.sinks.open import open_sink
from projections.view import Store
from projections.view_report import EXAMPLES, ViewReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cdc.lsn import Lsn
    from projections.plan import ViewPlan
    from projections.spec import JobSpec

_HASH_BYTES: Final = 16
_POLL_S: Final = 0.2


def verify(
    spec: JobSpec, *, through: Lsn | None = None, deadline_s: float = 60.0
) -> list[ViewReport]:
    """Compares all views of a job with their source.

    Args:
        spec: The job.
        through: Position that every view must have reached before anything is compared.
        deadline_s: Longest wait for that, seconds.

    Raises:
        NotCaughtUpError: A view did not reach the position in time.
        VerificationError: The source cannot be read.
        SinkError: A store cannot be read.
    """
    if through is not None:
        _await(spec, through, deadline_s)
    reports: list[ViewReport] = []
    with source_rows.snapshot(spec.source_dsn, spec.hiding.salt) as connection:
        reached = {(p.view, p.store): p.applied_through for p in _positions(spec)}
        for plan in spec.plans:
            withheld: list[str] = []
            truth = _Rows.of(plan, source_rows.documents(connection, plan, withheld))
            for store in sorted(plan.to):
                found = _compare(spec, plan, store, truth)
                if store is Store.CACHE:
                    again = partial(source_rows.documents, connection, plan)
                    _compare_beside(spec, plan, truth, found, again)
                columns = _columns(spec, plan, store, found, connection)
                report = _report(plan, store, truth, found, columns, reached)
                reports.append(replace(report, withheld=len(withheld)))
    return [*reports, *_delivered(spec, reached)]


def _delivered(spec: JobSpec, reached: Mapping[tuple[str, Store], Lsn]) -> Iterator[ViewReport]:
    """Compares derived views in the other stores with their tables, as these are published."""
    latest = Published(spec.addresses.tables, spec.source).latest()
    for view in spec.derived if latest is not None else ():
        stores = sorted(view.to - {Store.TABLE})
        if not stores or latest is None or view.name not in latest.views:
            continue
        version = latest.views[view.name].version
        plan = plan_at(spec, view, version)
        documents = partial(_published, spec, plan, version)
        truth = _Rows.of(plan, documents())
        for store in stores:
            found = _compare(spec, plan, store, truth)
            if store is Store.CACHE:
                _compare_beside(spec, plan, truth, found, documents)
            yield _report(plan, store, truth, found, (), reached)


def _published(spec: JobSpec, plan: ViewPlan, version: int) -> Iterator[Mapping[str, Any]]:
    """Rows of a derived view's table, in document form."""
    form = DocumentForm(plan)
    for part in DerivedDelivery(spec.addresses.tables, plan, version, 0, None).changes():
        yield from (form.fields(change.row) for change in part if change.row)


@dataclass(slots=True)
class _Rows:
    """The source's rows: place by key, and hash by place; for keyless tables only counts.

    With them what they come to beside rows, for views in the cache.
    """

    beside: Beside | None = None
    places: dict[str, int] = field(default_factory=dict)
    hashes: bytearray = field(default_factory=bytearray)
    counts: Counter[bytes] = field(default_factory=Counter)

    @classmethod
    def of(cls, plan: ViewPlan, documents: Iterable[Mapping[str, Any]]) -> _Rows:
        beside = Beside(plan) if Store.CACHE in plan.to else None
        rows = cls(beside)
        for document in documents:
            if beside is not None:
                beside.add(document)
            if plan.append_only:
                rows.counts[_hash(document)] += 1
            else:
                rows.places[_key(plan, document)] = len(rows.places)
                rows.hashes += _hash(document)
        return rows

    def __len__(self) -> int:
        return len(self.places) or self.counts.total()


@dataclass(slots=True)
class _Found:
    """What a comparison found."""

    missing: int = 0
    extra: int = 0
    different: int = 0
    examples: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)

    def note(self, key: str) -> None:
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"row {key}")


def _compare(spec: JobSpec, plan: ViewPlan, store: Store, truth: _Rows) -> _Found:
    sink = open_sink(store, spec.addresses)
    try:
        documents = _of_view(plan, sink.documents(plan))
        if plan.append_only:
            return _compare_counts(truth, documents)
        return _compare_keys(plan, truth, documents)
    finally:
        sink.close()


def _compare_keys(plan: ViewPlan, truth: _Rows, documents: Iterable[Mapping[str, Any]]) -> _Found:
    found = _Found()
    seen = bytearray(len(truth.places))
    for document in documents:
        key = _key(plan, document)
        place = truth.places.get(key)
        if place is None or seen[place]:
            found.extra += 1
            found.note(key)
            continue
        seen[place] = 1
        start = place * _HASH_BYTES
        if truth.hashes[start : start + _HASH_BYTES] != _hash(document):
            found.different += 1
            found.note(key)
            if len(found.differing) < EXAMPLES:
                found.differing.append(key)
    found.missing = len(seen) - sum(seen)
    if found.missing:
        for key, place in truth.places.items():
            if len(found.examples) == EXAMPLES:
                break
            if not seen[place]:
                found.note(key)
    return found


def _compare_counts(truth: _Rows, documents: Iterable[Mapping[str, Any]]) -> _Found:
    stored = Counter(_hash(document) for document in documents)
    return _Found(missing=(truth.counts - stored).total(), extra=(stored - truth.counts).total())


def _compare_beside(
    spec: JobSpec,
    plan: ViewPlan,
    truth: _Rows,
    found: _Found,
    documents: Callable[[], Iterable[Mapping[str, Any]]],
) -> None:
    """Adds what is wrong beside rows; reads them once more to name where a few are missing."""
    if truth.beside is None:
        return
    from projections.sinks.cache_entries import entries  # noqa: PLC0415  # needs the extra

    addresses = spec.addresses
    wrong = truth.beside.compare(
        truth.places, entries(addresses.cache_url, addresses.cache_prefix, plan)
    )
    found.missing += wrong.missing
    found.extra += wrong.extra
    found.different += wrong.different
    if wrong.lacking:
        for key, document in _having(plan, wrong.lacking, documents()).items():
            truth.beside.show_missing(wrong, truth.places[key], key, document)
    found.examples += wrong.examples


def _columns(
    spec: JobSpec,
    plan: ViewPlan,
    store: Store,
    found: _Found,
    connection: psycopg.Connection[Any],
) -> tuple[str, ...]:
    """Reads both sides once more for the columns in which the examples differ."""
    wanted = set(found.differing)
    if not wanted:
        return ()
    expected = _having(plan, wanted, source_rows.documents(connection, plan))
    sink = open_sink(store, spec.addresses)
    try:
        stored = _having(plan, wanted, _of_view(plan, sink.documents(plan)))
    finally:
        sink.close()
    names = [column.name for column in plan.schema.columns if column.name not in plan.absent]
    return tuple(
        name
        for name in names
        if any(row[name] != expected[key][name] for key, row in stored.items())
    )


def _of_view(plan: ViewPlan, documents: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """What both sides can have: a row as old as a column without a default need not show it."""
    names = [column.name for column in plan.schema.columns if column.name not in plan.absent]
    for document in documents:
        yield {name: document.get(name) for name in names}


def _having(
    plan: ViewPlan, wanted: set[str], documents: Iterable[Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    keyed = ((_key(plan, document), document) for document in documents)
    return {key: document for key, document in keyed if key in wanted}


def _report(  # noqa: PLR0913, PLR0917  # the parts of one line
    plan: ViewPlan,
    store: Store,
    truth: _Rows,
    found: _Found,
    columns: tuple[str, ...],
    reached: Mapping[tuple[str, Store], Lsn],
) -> ViewReport:
    return ViewReport(
        plan.name,
        store,
        len(truth),
        found.missing,
        found.extra,
        found.different,
        reached.get((plan.name, store)),
        tuple(found.examples),
        columns,
    )


def _key(plan: ViewPlan, document: Mapping[str, Any]) -> str:
    return key_text([document.get(name) for name in plan.keys])


def _hash(document: Mapping[str, Any]) -> bytes:
    data = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()


def _positions(spec: JobSpec) -> list[positions.ViewPosition]:
    try:
        with psycopg.connect(spec.source_dsn, connect_timeout=10) as connection:
            return positions.read(connection)
    except psycopg.errors.UndefinedTable:
        return []  # nothing was ever captured here
    except psycopg.Error as error:
        raise VerificationError(
            "positions of the views cannot be read", detail=type(error).__name__
        ) from None


def _await(spec: JobSpec, through: Lsn, deadline_s: float) -> None:
    wanted = {(plan.name, store) for plan in spec.plans for store in plan.to}
    wanted |= {(view.name, store) for view in spec.derived for store in (*view.to, Store.TABLE)}
    deadline = time.monotonic() + deadline_s
    while True:
        reached = {(p.view, p.store) for p in _positions(spec) if p.applied_through >= through}
        behind = wanted - reached
        if not behind:
            return
        if time.monotonic() > deadline:
            raise NotCaughtUpError(
                f"views have not reached {through} after {deadline_s:.0f} s",
                detail=", ".join(sorted(f"{view} in {store}" for view, store in behind)),
                hint="headwater status shows whether capture and the job run",
            )
        time.sleep(_POLL_S)
