"""Errors of projections, in one module per wing.

ProjectionError
├── DeclarationError         HW-P001  the declaration of a view or source is invalid
│   └── SeveralSourcesError  HW-P154  a derived view reads one that another job combines
├── PlanError                HW-P002  a view does not fit the source's tables
│   └── ConditionError       HW-P091  a condition does not fit its view's columns
├── SinkError                HW-P010  a store could not write a batch
│   ├── SinkUnavailableError HW-P011  a store does not answer, or is too busy
│   ├── SinkRefusedError     HW-P012  a store rejects a write
│   ├── UnholdableValueError HW-P013  a value has no exact form in a store
│   ├── NoStoredRowError     HW-P014  no stored row has an unchanged value
│   ├── WriterLockedError    HW-P015  another process may write the tables
│   ├── LoadFailedError      HW-P016  a table could not be loaded from the source
│   ├── WriterFencedError    HW-P017  another driver has the driver lock
│   ├── TableTornError       HW-P018  the log of a view's table is damaged
│   ├── SinkReadOnlyError    HW-P065  a store is read-only
│   ├── IndexRefusedError    HW-P066  the search engine refuses a view's index
│   ├── IndexLostError       HW-P067  a view's search index was deleted or replaced
│   ├── FeedLostError        HW-P083  a change feed no longer covers what a store lacks
│   └── CacheError           HW-P060  the cache lost data or cannot be written
│       ├── CacheLostError     HW-P061  the cache has lost data
│       ├── CacheFullError     HW-P062  the cache's memory is full
│       └── CacheReadOnlyError HW-P063  the cache is a replica
├── CacheUnknownError        HW-P064  the cache has no such view or lookup
├── ReplayError              HW-P105  the archive cannot be replayed
│   ├── ArchiveMissingError  HW-P106  the source has no readable archive
│   ├── ArchiveIncompleteError HW-P107  the archive lacks records
│   ├── ReplayStoppedError   HW-P108  a replay was stopped
│   ├── BulkLostError        HW-P153  the job's Spark cannot help a rebuild
│   ├── RebuildSpaceError    HW-P158  a rebuild by Spark has no disk space
│   └── MomentUnreadableError HW-P109  the archive does not cover a position
├── JobError                 HW-P020  the streaming job refuses to continue
│   ├── TruncateError        HW-P021  a table of events was truncated
│   ├── KeylessChangeError   HW-P022  a table without a key was updated
│   ├── TopicsMissingError   HW-P023  a topic of the views does not exist
│   ├── QueryFailedError     HW-P025  a streaming query fails repeatedly
│   ├── AttendantFailedError HW-P029  a background task of the job fails
│   ├── BacklogSpaceError    HW-P159  a large batch has no disk space
│   ├── RecordOrderError     HW-P160  records of a batch come in another order
│   ├── SparkEndedError      HW-P026  the driver's JVM ended by itself
│   ├── EventUnreadableError HW-P027  an event cannot be read
│   ├── RecordsLostError     HW-P028  a query's next records are lost
│   ├── CheckpointForeignError HW-P110 a checkpoint belongs to another query
│   ├── CheckpointTornError  HW-P111  a checkpoint is damaged
│   └── ClusterError         HW-P100  the Spark cluster cannot run the job
│       ├── MasterUnreachableError HW-P101  no Spark master answers
│       ├── NoExecutorsError       HW-P102  the cluster provides no executor
│       ├── FolderNotSharedError   HW-P103  an executor cannot see the home folder
│       └── BatchSupersededError   HW-P104  a task belongs to an abandoned batch
├── QuarantineError          HW-P040  quarantined records could not be stored or read
│   ├── QuarantineFullError  HW-P041  a view has more quarantined records than allowed
│   ├── ViewOverfullError    HW-P157  a view is paused by its quarantine
│   ├── QuarantineDownError  HW-P042  the database of the quarantine does not answer
│   └── WaitsBehindError     HW-P043  an earlier change of the key is quarantined
├── ViewShapeError           HW-P050  the columns of view and table differ
│   ├── ViewPausedError      HW-P051  a view is paused because its table has changed
│   └── UnknownShapeError    HW-P052  a record's schema change is not recorded
├── StableTableError         HW-P120  a stable path cannot be updated
│   ├── LogUnreadableError   HW-P121  a table's log cannot be read far enough
│   ├── LogWrittenError      HW-P122  another process wrote to a stable path
│   ├── PlaceUnpublishedError HW-P123 a version is not published
│   └── PlaceBehindError     HW-P124  a switch would go back in time
├── ForgettingRefusedError   HW-P144  keys cannot be forgotten as requested
├── AlertError               HW-P145  an alert cannot be evaluated or delivered
│   ├── AlertConditionError  HW-P146  an alert's condition cannot be evaluated
│   ├── AlertSignatureError  HW-P147  a message's signature is invalid
│   └── AlertUndeliveredError HW-P148 a channel did not accept a message
├── StandingQueryError       HW-P149  a standing query cannot be parsed
├── EffectKeyError           HW-P152  a change has no key for its effects
├── DerivationError          HW-P080  a derived view cannot be maintained
│   ├── ViewQueryError       HW-P081  the query of a derived view is invalid
│   └── DuplicateKeyError    HW-P082  the declared key does not identify rows
├── VerificationError        HW-P030  views could not be compared
│   ├── NotCaughtUpError     HW-P031  views did not reach the position in time
│   │   └── BehindError      HW-P033  one view, and its stage: `read_barrier`
│   ├── RepairRefusedError   HW-P034  reading rows again cannot repair the difference
│   └── TraceError           HW-P032  a row cannot be followed from its commits to the stores
├── VersionError             HW-P130  the versions of a view forbid the operation
│   ├── VersionBusyError     HW-P131  another operation uses the versions
│   ├── VersionUnknownError  HW-P132  a view has no such version
│   ├── VersionBehindError   HW-P133  a version lags the active version
│   ├── VersionDiffersError  HW-P134  a version has unexplained differences
│   ├── DefinitionUnreadableError HW-P135  a stored definition cannot be read
│   ├── RebuildRefusedError  HW-P136  a view cannot be rebuilt as requested
│   ├── RebuildStoppedError  HW-P137  a rebuild was paused; it can be resumed
│   ├── SwitchUnfinishedError HW-P150 a cutover is incomplete in some stores
│   └── FunctionLostError    HW-P151  a version's stored function is missing
├── ExpectationError         HW-P090  a row does not meet an expectation
│   ├── RowUnexpectedError   HW-P092  the row's record is quarantined
│   └── ViewHaltedError      HW-P093  the expectation pauses its view
└── SearchError              HW-P070  a search cannot be answered
    ├── NoIndexError         HW-P071  no view of that name can be searched
    ├── SearchFieldError     HW-P072  a view has no such field for this use
    └── SearchQueryError     HW-P073  a search query is invalid

Purpose: one class and one code for each way in which a view can fail.
Entry points: this package exports every class; import none of its modules from outside.
Invariants: a code is never reused, and its meaning never changes. No error contains a row's value.
Tests: tests/unit/foundation, tests/unit/house.
"""

from __future__ import annotations

from projections.errors.alerting import (
    AlertConditionError,
    AlertError,
    AlertSignatureError,
    AlertUndeliveredError,
)
from projections.errors.archive import (
    ArchiveIncompleteError,
    ArchiveMissingError,
    BulkLostError,
    MomentUnreadableError,
    RebuildSpaceError,
    ReplayError,
    ReplayStoppedError,
)
from projections.errors.base import (
    ProjectionError,
)
from projections.errors.changes import (
    EffectKeyError,
    ExpectationError,
    QuarantineDownError,
    QuarantineError,
    QuarantineFullError,
    RowUnexpectedError,
    UnknownShapeError,
    ViewHaltedError,
    ViewOverfullError,
    ViewPausedError,
    ViewShapeError,
    WaitsBehindError,
)
from projections.errors.definition import (
    ConditionError,
    DeclarationError,
    PlanError,
    SeveralSourcesError,
    StandingQueryError,
)
from projections.errors.incremental import (
    DerivationError,
    DuplicateKeyError,
    ViewQueryError,
)
from projections.errors.job import (
    AttendantFailedError,
    BacklogSpaceError,
    BatchSupersededError,
    CheckpointForeignError,
    CheckpointTornError,
    ClusterError,
    EventUnreadableError,
    FolderNotSharedError,
    JobError,
    KeylessChangeError,
    MasterUnreachableError,
    NoExecutorsError,
    QueryFailedError,
    RecordOrderError,
    RecordsLostError,
    SparkEndedError,
    TopicsMissingError,
    TruncateError,
)
from projections.errors.publishing import (
    LogUnreadableError,
    LogWrittenError,
    PlaceBehindError,
    PlaceUnpublishedError,
    StableTableError,
)
from projections.errors.search import (
    NoIndexError,
    SearchError,
    SearchFieldError,
    SearchQueryError,
)
from projections.errors.stores import (
    CacheError,
    CacheFullError,
    CacheLostError,
    CacheReadOnlyError,
    CacheUnknownError,
    FeedLostError,
    IndexLostError,
    IndexRefusedError,
    LoadFailedError,
    NoStoredRowError,
    SinkError,
    SinkReadOnlyError,
    SinkRefusedError,
    SinkUnavailableError,
    TableTornError,
    UnholdableValueError,
    WriterFencedError,
    WriterLockedError,
)
from projections.errors.verification import (
    ForgettingRefusedError,
    NotCaughtUpError,
    RepairRefusedError,
    TraceError,
    VerificationError,
)
from projections.errors.versions import (
    DefinitionUnreadableError,
    FunctionLostError,
    RebuildRefusedError,
    RebuildStoppedError,
    SwitchUnfinishedError,
    VersionBehindError,
    VersionBusyError,
    VersionDiffersError,
    VersionError,
    VersionUnknownError,
)

__all__ = [
    "AlertConditionError",
    "AlertError",
    "AlertSignatureError",
    "AlertUndeliveredError",
    "ArchiveIncompleteError",
    "ArchiveMissingError",
    "AttendantFailedError",
    "BacklogSpaceError",
    "BatchSupersededError",
    "BulkLostError",
    "CacheError",
    "CacheFullError",
    "CacheLostError",
    "CacheReadOnlyError",
    "CacheUnknownError",
    "CheckpointForeignError",
    "CheckpointTornError",
    "ClusterError",
    "ConditionError",
    "DeclarationError",
    "DefinitionUnreadableError",
    "DerivationError",
    "DuplicateKeyError",
    "EffectKeyError",
    "EventUnreadableError",
    "ExpectationError",
    "FeedLostError",
    "FolderNotSharedError",
    "ForgettingRefusedError",
    "FunctionLostError",
    "IndexLostError",
    "IndexRefusedError",
    "JobError",
    "KeylessChangeError",
    "LoadFailedError",
    "LogUnreadableError",
    "LogWrittenError",
    "MasterUnreachableError",
    "MomentUnreadableError",
    "NoExecutorsError",
    "NoIndexError",
    "NoStoredRowError",
    "NotCaughtUpError",
    "PlaceBehindError",
    "PlaceUnpublishedError",
    "PlanError",
    "ProjectionError",
    "QuarantineDownError",
    "QuarantineError",
    "QuarantineFullError",
    "QueryFailedError",
    "RebuildRefusedError",
    "RebuildSpaceError",
    "RebuildStoppedError",
    "RecordOrderError",
    "RecordsLostError",
    "RepairRefusedError",
    "ReplayError",
    "ReplayStoppedError",
    "RowUnexpectedError",
    "SearchError",
    "SearchFieldError",
    "SearchQueryError",
    "SeveralSourcesError",
    "SinkError",
    "SinkReadOnlyError",
    "SinkRefusedError",
    "SinkUnavailableError",
    "SparkEndedError",
    "StableTableError",
    "StandingQueryError",
    "SwitchUnfinishedError",
    "TableTornError",
    "TopicsMissingError",
    "TraceError",
    "TruncateError",
    "UnholdableValueError",
    "UnknownShapeError",
    "VerificationError",
    "VersionBehindError",
    "VersionBusyError",
    "VersionDiffersError",
    "VersionError",
    "VersionUnknownError",
    "ViewHaltedError",
    "ViewOverfullError",
    "ViewPausedError",
    "ViewQueryError",
    "ViewShapeError",
    "WaitsBehindError",
    "WriterFencedError",
    "WriterLockedError",
]
