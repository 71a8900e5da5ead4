"""What runs in Spark's Python workers: decode, reduce, write, count.

Nothing of a batch goes back to the driver but one row of counters for each view. Sinks are kept
from batch to batch: Spark reuses its worker processes.
"""

from __future__ import annotations

import time
import traceback
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from cdc.errors import CdcError
from projections.change import Applied
from projections.decode import TopicReducer
from projections.errors import ProjectionError, QueryFailedError
from projections.fault import FaultError
from projections.plan import facts_of
from projections.sinks.open import open_sink
from projections.view import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from projections.change import RowChange
    from projections.plan import ViewPlan
    from projections.sinks.sink import Sink
    from projections.spec import StoreAddresses

COUNTERS: Final = pa.schema(
    [
        ("view", pa.string()),
        ("records", pa.int64()),
        ("upserted", pa.int64()),
        ("deleted", pa.int64()),
        ("stale", pa.int64()),
        ("size_bytes", pa.int64()),
        ("fresh_changes", pa.int64()),
        ("lag_p50_us", pa.int64()),
        ("lag_p99_us", pa.int64()),
    ]
)
COUNTERS_DDL: Final = ", ".join(
    f"{name} {'string' if name == 'view' else 'long'}" for name in COUNTERS.names
)

# a merge costs the same for one change and for thousands; the others are best kept in motion
_CHANGES_PER_WRITE: Final = {Store.TABLE: 100_000, Store.SEARCH: 10_000, Store.CACHE: 10_000}

_sinks: dict[tuple[Store, StoreAddresses], Sink] = {}


@dataclass(slots=True)
class _Count:
    records: int = 0
    applied: Applied = field(default_factory=Applied)
    lags_us: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Reader:
    plans: list[ViewPlan]
    reducer: TopicReducer


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Writes record batches of change topics into one store.

    Attributes:
        store: Where to.
        plans: The views of that store.
        addresses: Where the store answers.
    """

    store: Store
    plans: tuple[ViewPlan, ...]
    addresses: StoreAddresses

    def prepare(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Makes the views' places in the store; the batches say nothing."""
        for _ in batches:
            pass
        try:
            sink = self._sink()
            for plan in self.plans:
                sink.prepare(plan)
        except Exception as error:  # noqa: BLE001  # the edge of the process
            raise _crossing(error) from None
        yield _counters({})

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Applies all batches of a task and yields one row of counters for each view."""
        try:
            counts = self._write(batches)
        except Exception as error:  # noqa: BLE001  # the edge of the process
            raise _crossing(error) from None
        yield _counters(counts)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> dict[str, _Count]:
        readers = _readers(self.plans)
        counts: dict[str, _Count] = defaultdict(_Count)
        limit = _CHANGES_PER_WRITE[self.store]
        for batch in batches:
            for topic, records in _by_topic(batch):
                # a topic beside the views', such as the heartbeat's, has no reader
                for reader in readers.get(topic, ()):
                    reader.reducer.add(records)
                    if len(reader.reducer) >= limit:
                        self._flush(reader.plans, reader.reducer, counts)
        for reader in chain.from_iterable(readers.values()):
            if reader.reducer.records:
                self._flush(reader.plans, reader.reducer, counts)
        return counts

    def _flush(
        self, plans: Sequence[ViewPlan], reducer: TopicReducer, counts: dict[str, _Count]
    ) -> None:
        records, changes = reducer.records, reducer.changes()
        reducer.records = 0
        sink = self._sink()
        for plan in plans:
            mine = changes if plan.events is None else plan.events.changes(changes)
            applied = sink.apply(plan, mine) if mine else Applied()
            count = counts[plan.name]
            count.records += records
            count.applied += applied
            count.lags_us += _lags(mine)

    def _sink(self) -> Sink:
        place = self.store, self.addresses
        if place not in _sinks:
            _sinks[place] = open_sink(*place)
        return _sinks[place]


def _readers(plans: Iterable[ViewPlan]) -> dict[str, list[_Reader]]:
    """Who reads each topic: mirrors of its table, and views of the events in it."""
    readers: dict[str, list[_Reader]] = defaultdict(list)
    groups: dict[tuple[str, bool], list[ViewPlan]] = defaultdict(list)
    for plan in plans:
        for topic in plan.topics:
            groups[topic, plan.events is None].append(plan)
    for (topic, _), group in groups.items():
        reducer = TopicReducer(group[0].topics[topic], facts_of(group, topic))
        readers[topic].append(_Reader(group, reducer))
    return readers


def _crossing(error: Exception) -> FaultError:
    """What crosses to the driver: never the text of an error not ours, which may show a value."""
    if isinstance(error, CdcError | ProjectionError):
        return FaultError(error)
    places = traceback.extract_tb(error.__traceback__)
    where = ", ".join(f"{Path(place.filename).name}:{place.lineno}" for place in places[-4:])
    detail = f"{type(error).__name__} at {where}"
    return FaultError(QueryFailedError("a batch cannot be written", detail=detail))


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Splits a batch into runs of one topic; a Kafka partition's records lie together."""
    topics = batch.column("topic").to_pylist()
    columns = [
        batch.column(name).to_pylist() for name in ("key", "value", "epoch", "partition", "offset")
    ]
    start = 0
    for place in range(1, len(topics) + 1):
        if place == len(topics) or topics[place] != topics[start]:
            columns_of_run = [column[start:place] for column in columns]
            yield topics[start], list(zip(*columns_of_run, strict=True))
            start = place


def _lags(changes: Sequence[RowChange]) -> list[int]:
    now_us = time.time_ns() // 1000
    return [now_us - change.committed_at_us for change in changes if change.committed_at_us]


def _counters(counts: dict[str, _Count]) -> pa.RecordBatch:
    rows = []
    for view, count in counts.items():
        lags = sorted(count.lags_us)
        rows.append(
            {
                "view": view,
                "records": count.records,
                "upserted": count.applied.upserted,
                "deleted": count.applied.deleted,
                "stale": count.applied.stale,
                "size_bytes": count.applied.size_bytes,
                "fresh_changes": len(lags),
                "lag_p50_us": lags[len(lags) // 2] if lags else None,
                "lag_p99_us": lags[len(lags) * 99 // 100] if lags else None,
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=COUNTERS)
