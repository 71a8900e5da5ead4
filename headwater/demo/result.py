"""What the demo found, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

STORES = ("table", "search", "cache")
"""The stores in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class StoreComparison:
    """One view in one store, compared with its source.

    Attributes:
        view: Name of the view.
        store: `table`, `search` or `cache`.
        rows: Rows of the source's table at the position compared at.
        missing: Rows that the source has and the store has not.
        extra: Rows that the store has and the source has not.
        different: Rows that both have, with different content.
        applied_through: Source position that the view has reached, as Postgres prints it.
        moving: Rows that changed whenever they were looked at.
        quarantined: Rows that are wrong as a record of them waits.
        verified_through: Position through which the store equals the source, the same way.
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
        """Whether nothing differs, and nothing is left to be looked at."""
        wrong = self.missing or self.extra or self.different or self.quarantined
        return not (wrong or self.moving)


@dataclass(frozen=True, slots=True)
class Freshness:
    """From the start of a commit until a reader of one store sees it, in milliseconds.

    Attributes:
        p50_ms: Half of the commits were seen within this.
        p99_ms: The 99th percentile of the delay of commits.
        max_ms: The slowest.
        samples: Commits measured.
        unseen: Commits that no reader ever saw.
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
        first_change_s: The first change event was read back from Kafka.
        job_ready_s: Spark keeps the views.
    """

    services_ready_s: float
    first_change_s: float
    job_ready_s: float


@dataclass(frozen=True, slots=True)
class Invariant:
    """A sum that the workload itself promises to be equal everywhere.

    Attributes:
        name: What is promised.
        place: `source` or a store.
        values: The sums, by the name of what was summed.
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
    """A component that was killed on purpose.

    Attributes:
        killed: Its name.
        pid: The process that was killed with SIGKILL.
        killed_after_s: Seconds of traffic before that.
        back_after_s: Seconds until it was ready again.
        caught_up_after_s: Seconds until views held what was committed when it was ready again.
    """

    killed: str
    pid: int
    killed_after_s: float
    back_after_s: float
    caught_up_after_s: float


@dataclass(frozen=True, slots=True)
class ReaderObservations:
    """What a reader of one store saw while a view was rebuilt and switched.

    Attributes:
        reads: Answers.
        errors: Reads that failed.
        empties: Answers without the row.
        steps_back: Answers that were older than one before.
        error: Kind of the last failure.
    """

    reads: int = 0
    errors: int = 0
    empties: int = 0
    steps_back: int = 0
    error: str | None = None

    @property
    def clean(self) -> bool:
        """Whether the reader noticed nothing."""
        return self.reads > 0 and not (self.errors or self.empties or self.steps_back)


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """A view that was rebuilt while traffic ran.

    Attributes:
        view: The view.
        version: The version that was built.
        changes: Changes that were replayed.
        built_s: Until the job held it.
        explained: What differed by its definition, and in how many rows or columns.
        builds_killed: How often the command that builds it was killed, and given again.
        switches: How often readers were moved.
        killed: How many of these were killed on the way.
        job_killed: The job, killed while readers were moved for the last times.
        watched: By store, what a reader saw until all of that was over.
        before: Freshness of the store until the rebuild began, with the same readers.
        building: And until the version was held.
        switching: And from then until the job was killed.
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
        """Whether no reader noticed anything."""
        return all(seen.clean for seen in self.watched.values())


@dataclass(frozen=True, slots=True)
class RepairedDamage:
    """Damage that was done on purpose.

    Attributes:
        view: In which view.
        store: In which store.
        found: Rows that a verification found, the damaged one and no other.
        left: Stores in which something was wrong after the repair.
    """

    view: str
    store: str
    found: int
    left: int


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """A person who was forgotten.

    Attributes:
        table: Of whose rows.
        records: Records of the archive that lost their values.
        files: Files that were searched.
        values: Values that only this person had, searched for.
        found_in: Files that had one.
        complete: Whether every place was done.
    """

    table: str
    records: int
    files: int
    values: int
    found_in: int
    complete: bool


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything the demo prints at its end.

    Attributes:
        workload: Name of the workload.
        position: Source position at which all was compared.
        views: One entry for each view and store.
        freshness: By store.
        seconds: How long the traffic ran.
        rate: Row changes per second that were asked for.
        changes: Committed row changes.
        transactions: Committed transactions.
        rolled_back: Transactions rolled back on purpose.
        startup: Time to ready.
        memory_mib: Resident memory of all processes together while traffic ran; the largest seen.
        caught_up_s: From the last commit until every view had reached `position`.
        invariants: Sums that must be equal.
        recoveries: What was killed, in this order.
        rebuilt: What was rebuilt, if anything.
        mended: What was damaged on purpose and repaired, if anything.
        forgotten: Who was forgotten, if anybody.
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
        """Whether all views equal the source, all sums hold, and all else went as it should."""
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
