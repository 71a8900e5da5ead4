"""The job's report on itself: figures of its last batches, and the status file."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson

from foundation.atomic_file import write_atomically
from projections.common.fault import Fault
from projections.job.backlog import QueryBacklog, unread_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from projections.job.initial_load import LoadProgress
    from projections.planning.job_spec import PausedView

BATCHES_KEPT: Final = 30
"""Number of recent batches in the figures."""

_COUNTED: Final = ("records", "applied", "quarantined", "filtered")


class JobState(StrEnum):
    """The job's state; written by the job itself."""

    STARTING = "starting"  # until every query runs; `error` says why the job before it gave up
    READY = "ready"  # from then on, also while a query restarts
    STOPPED = "stopped"  # asked to stop, and did
    FAILED = "failed"  # gave up; `error` says why


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """One batch of a query."""

    batch_id: int
    finished_at: float
    records: int
    applied: int
    quarantined: int
    filtered: int
    upserted: int
    deleted: int
    stale: int
    size_bytes: int
    lag_p50_ms: int | None
    lag_p99_ms: int | None


@dataclass(slots=True)
class QueryProgress:
    """Figures of one query; written by its batches, read by the job's loop.

    Attributes:
        batches: Batches finished since the job started.
        records: Records in them.
        error: Why the query is not running, if it failed.
        running: Whether it runs.
        phases_ms: Time of each phase of its last batch, with Spark's names.
        phases_of: Id of the batch of `phases_ms`.
        views: By view, the outcome of its records in those batches: `records` is the sum of
            `applied`, `quarantined` and `filtered`, in each batch and so in all.
        failed: By view and expectation, rows of those batches that did not meet it.
        recent: Its last batches.
        backlog: The records that it has still to read.
        load: The view that is being loaded before the query starts; None if there is none.
    """

    batches: int = 0
    records: int = 0
    error: Fault | None = None
    running: bool = False
    phases_ms: dict[str, int] = field(default_factory=dict)
    phases_of: int | None = None
    views: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: dict[str, dict[str, int]] = field(default_factory=dict)
    recent: deque[BatchFigures] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    backlog: QueryBacklog = field(default_factory=lambda: QueryBacklog(0))
    load: LoadProgress | None = None

    def loading(self, load: LoadProgress | None) -> None:
        """Records the progress of a load; None when it has ended."""
        self.load = load

    def record(self, batch_id: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds the counters of a finished batch."""
        lags = [row for row in rows if row["fresh_changes"]]
        figures = BatchFigures(
            batch_id=batch_id,
            finished_at=time.time(),
            records=_sum(rows, "records"),
            applied=_sum(rows, "applied"),
            quarantined=_sum(rows, "quarantined"),
            filtered=_sum(rows, "filtered"),
            upserted=_sum(rows, "upserted"),
            deleted=_sum(rows, "deleted"),
            stale=_sum(rows, "stale"),
            size_bytes=_sum(rows, "size_bytes"),
            lag_p50_ms=_typical(lags),
            lag_p99_ms=max((row["lag_p99_us"] // 1000 for row in lags), default=None),
        )
        self.recent.append(figures)
        self.batches += 1
        self.records += figures.records
        for row in rows:
            view = self.views.setdefault(row["view"], dict.fromkeys(_COUNTED, 0))
            for name in _COUNTED:
                view[name] += int(row[name])
            for name, rows_failed in (row["failed"] or {}).items():
                of_view = self.failed.setdefault(row["view"], {})
                of_view[name] = of_view.get(name, 0) + int(rows_failed)

    def archived(self, batch_id: int, added: int) -> None:
        """Adds a finished batch of the archive, with its count of new records."""
        self.recent.append(
            BatchFigures(batch_id, time.time(), added, added, 0, 0, added, 0, 0, 0, None, None)
        )
        self.batches += 1
        self.records += added

    @property
    def phases_wanted(self) -> bool:
        """Whether the phases belong to an earlier batch than the last."""
        return bool(self.recent) and self.recent[-1].batch_id != self.phases_of

    def time_spent(self, last: StreamingQueryProgress) -> None:
        """Adds the phases of a batch and its backlog, which Spark reports some time after it."""
        if last.batchId >= self.recent[-1].batch_id:
            self.phases_of = self.recent[-1].batch_id
            self.phases_ms = dict(last.durationMs)
            self.backlog.add(time.monotonic(), unread_records(last))

    def figures(self) -> dict[str, Any]:
        """Returns the figures for the status file."""
        recent = list(self.recent)
        fresh = [batch for batch in recent if batch.lag_p50_ms is not None]
        seconds = recent[-1].finished_at - recent[0].finished_at if len(recent) > 1 else 0.0
        records = sum(batch.records for batch in recent[1:])
        return {
            "running": self.running,
            "batches": self.batches,
            "records": self.records,
            "views": {name: dict(counts) for name, counts in list(self.views.items())},
            "failed": {name: dict(counts) for name, counts in list(self.failed.items())},
            "last_batch": asdict(recent[-1]) if recent else None,
            "records_per_s": round(records / seconds, 1) if seconds else None,
            "lag_p50_ms": _middle([batch.lag_p50_ms or 0 for batch in fresh]),
            "lag_p99_ms": max((batch.lag_p99_ms or 0 for batch in fresh), default=None),
            "phases_ms": self.phases_ms,
            "backlog": self.backlog.figures(),
            "load": asdict(load) if (load := self.load) else None,  # another thread sets it
            "error": asdict(self.error) if self.error else None,
        }


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The content of the status file.

    Attributes:
        state: The job's state.
        error: Why it ended, if it failed; while it starts, why the one before it did.
        queries: Figures of its queries, by name.
        paused: Paused views, and why.
    """

    state: JobState
    error: Fault | None = None
    queries: Mapping[str, QueryProgress] = field(default_factory=dict)
    paused: Sequence[PausedView] = ()
    attendants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @staticmethod
    def error_in(path: Path) -> Fault | None:
        """Returns why the last job failed, from its status file; None if it did not."""
        try:
            error = orjson.loads(path.read_bytes())["error"]
            return Fault(**error) if error else None
        except (OSError, ValueError, LookupError, TypeError):  # none, or of another release
            return None

    def write(self, path: Path) -> None:
        """Writes the file atomically."""
        content = {
            "state": self.state,
            "at": time.time(),
            "queries": {name: progress.figures() for name, progress in self.queries.items()},
            "paused": [
                {"view": view.name, "stores": sorted(view.to), "error": asdict(view.fault)}
                for view in self.paused
            ],
            "attendants": dict(self.attendants),
            "error": asdict(self.error) if self.error else None,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, orjson.dumps(content, option=orjson.OPT_INDENT_2), durable=False)


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(int(row[name]) for row in rows)


def _typical(rows: list[Mapping[str, Any]]) -> int | None:
    """Returns the median lag of the views, weighted by their changes."""
    half = sum(row["fresh_changes"] for row in rows) / 2
    for row in sorted(rows, key=lambda row: int(row["lag_p50_us"])):
        half -= row["fresh_changes"]
        if half <= 0:
            return int(row["lag_p50_us"]) // 1000
    return None


def _middle(values: list[int]) -> int | None:
    return sorted(values)[len(values) // 2] if values else None
