"""The result of the demo, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

STORES = ("table", "search", "cache")
"""The stores in display order."""


@dataclass(frozen=True, slots=True)
class StoreComparison:
    """One view in one store, compared with its source.

    Attributes:
        view: Name of the view.
        store: `table`, `search` or `cache`.
        rows: Rows of the source's table at the compared position.
        missing: Rows that exist only in the source.
        extra: Rows that exist only in the store.
        different: Rows that exist in both, with different content.
        applied_through: Source position that the view has reached, as Postgres prints it.
        moving: Rows that changed at each attempt to compare them.
        quarantined: Rows that differ because a record of them is quarantined.
        verified_through: Source position through which the store equals the source.
    """

    view: str
    store: str
    rows: int
    missing: int
    extra: int
    different: int
    applied_through: str
    moving: int = 0
    quarantined: int = 0
    verified_through: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether no row differs, and none is left to compare."""
        wrong = self.missing or self.extra or self.different or self.quarantined
        return not (wrong or self.moving)


@dataclass(frozen=True, slots=True)
class Freshness:
    """Time from the start of a commit until a reader of one store sees it, in milliseconds.

    Attributes:
        p50_ms: The median.
        p99_ms: The 99th percentile.
        max_ms: The maximum.
        samples: Number of measured commits.
        unseen: Number of commits that the reader never saw.
    """

    p50_ms: float
    p99_ms: float
    max_ms: float
    samples: int
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds since the demo began.

    Attributes:
        services_ready_s: Every server answers in its protocol.
        first_change_s: The first change event was read from Kafka.
        job_ready_s: The Spark job maintains the views.
    """

    services_ready_s: float
    first_change_s: float
    job_ready_s: float


@dataclass(frozen=True, slots=True)
class Invariant:
    """An invariant of the workload: sums that must be equal in every store.

    Attributes:
        name: Name of the invariant.
        place: `source` or a store.
        values: The sums, by name.
    """

    name: str
    place: str
    values: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether all sums are equal."""
        return len(set(self.values.values())) <= 1


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of a component that the demo killed.

    Attributes:
        killed: Name of the component.
        pid: The process that received SIGKILL.
        killed_after_s: Seconds of traffic before the kill.
        back_after_s: Seconds from the kill until the component was ready.
        caught_up_after_s: Seconds until the views had all commits up to that moment.
    """

    killed: str
    pid: int
    killed_after_s: float
    back_after_s: float
    caught_up_after_s: float


@dataclass(frozen=True, slots=True)
class ReaderObservations:
    """Observations of a reader of one store during a rebuild and its switches.

    Attributes:
        reads: Number of reads.
        errors: Failed reads.
        empties: Reads that returned no row.
        steps_back: Reads that returned an older value than an earlier read.
        error: Class of the last error.
    """

    reads: int = 0
    errors: int = 0
    empties: int = 0
    steps_back: int = 0
    error: str | None = None

    @property
    def clean(self) -> bool:
        """Whether every read was consistent."""
        return self.reads > 0 and not (self.errors or self.empties or self.steps_back)


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """A view that was rebuilt while traffic ran.

    Attributes:
        view: The view.
        version: The version that was built.
        changes: Number of replayed changes.
        built_s: Seconds until the job had adopted the version.
        explained: Differences due to the new definition, with their numbers of rows or columns.
        builds_killed: How often the rebuild command was killed and repeated.
        switches: Number of cutovers and rollbacks.
        killed: Number of these during which the command was killed.
        job_killed: Recovery of the job, which was killed during the last switches.
        watched: Observations of the readers, by store.
        before: Freshness by store before the rebuild, with the same readers.
        building: Freshness by store during the rebuild.
        switching: Freshness by store during the switches, until the job was killed.
    """

    view: str
    version: int
    changes: int
    built_s: float
    explained: dict[str, int]
    builds_killed: int
    switches: int
    killed: int
    job_killed: Recovery
    watched: dict[str, ReaderObservations]
    before: dict[str, Freshness]
    building: dict[str, Freshness]
    switching: dict[str, Freshness]

    @property
    def unnoticed(self) -> bool:
        """Whether every read was consistent in every store."""
        return all(seen.clean for seen in self.watched.values())


@dataclass(frozen=True, slots=True)
class RepairedDamage:
    """Damage that the demo caused and repaired.

    Attributes:
        view: The damaged view.
        store: The damaged store.
        found: Rows that the verification found: only the damaged one.
        left: Number of stores that still differed after the repair.
    """

    view: str
    store: str
    found: int
    left: int


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """The erasure of a person.

    Attributes:
        table: Table of the person's rows.
        records: Archive records whose values were erased.
        files: Number of searched files.
        values: Number of searched values, which only this person had.
        found_in: Files that still contained one of the values.
        complete: Whether the erasure covered every store.
        incomplete: Places that had not erased everything in time.
    """

    table: str
    records: int
    files: int
    values: int
    found_in: int
    complete: bool
    incomplete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything that the demo prints at its end.

    Attributes:
        workload: Name of the workload.
        position: Source position of the comparison.
        views: One entry for each view and store.
        freshness: Freshness by store.
        seconds: Duration of the traffic.
        rate: Requested row changes per second.
        changes: Committed row changes.
        transactions: Committed transactions.
        rolled_back: Transactions that the workload rolled back.
        startup: Times until the services and the job were ready.
        memory_mib: Maximum resident memory of all processes together during the traffic.
        caught_up_s: Seconds from the last commit until every view had reached `position`.
        invariants: Sums that must be equal.
        recoveries: Recoveries of the killed components, in order.
        rebuilt: The rebuild, if there was one.
        mended: The damage and its repair, if there was one.
        forgotten: The erasure of a person, if there was one.
    """

    workload: str
    position: str
    views: tuple[StoreComparison, ...]
    freshness: dict[str, Freshness]
    seconds: float
    rate: float
    changes: int
    transactions: int
    rolled_back: int
    startup: Startup
    memory_mib: int
    caught_up_s: float
    invariants: tuple[Invariant, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    rebuilt: RebuildResult | None = None
    mended: RepairedDamage | None = None
    forgotten: ErasureResult | None = None

    @property
    def changes_per_second(self) -> float:
        """Committed row changes per second of traffic."""
        return self.changes / self.seconds if self.seconds else 0.0

    @property
    def verified(self) -> bool:
        """Whether all views equal the source, all invariants hold, and all other steps passed."""
        compared = bool(self.views) and all(view.agrees for view in self.views)
        unnoticed = self.rebuilt is None or self.rebuilt.unnoticed
        mended = self.mended is None or not self.mended.left
        forgotten = self.forgotten is None or self.forgotten.complete
        after = unnoticed and mended and forgotten
        return compared and after and all(invariant.holds for invariant in self.invariants)

    def to_json(self) -> dict[str, Any]:
        """The document of `headwater demo --json`."""
        return {
            "workload": self.workload,
            "verified": self.verified,
            "position": self.position,
            "views": [asdict(view) for view in self.views],
            "freshness": {store: asdict(found) for store, found in self.freshness.items()},
            "changes_per_second": round(self.changes_per_second, 1),
            "changes": self.changes,
            "transactions": self.transactions,
            "rolled_back": self.rolled_back,
            "seconds": round(self.seconds, 1),
            "caught_up_s": round(self.caught_up_s, 2),
            "startup": asdict(self.startup),
            "memory_mib": self.memory_mib,
            "invariants": [
                asdict(invariant) | {"holds": invariant.holds} for invariant in self.invariants
            ],
            "recoveries": [asdict(recovery) for recovery in self.recoveries],
            "rebuilt": asdict(self.rebuilt) if self.rebuilt else None,
            "mended": asdict(self.mended) if self.mended else None,
            "forgotten": asdict(self.forgotten) if self.forgotten else None,
        }
