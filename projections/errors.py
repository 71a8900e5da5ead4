"""Errors of projections.

ProjectionError
├── DeclarationError         HW-P001  a view is declared wrongly
├── PlanError                HW-P002  a view does not fit the source's tables
│   └── ConditionError       HW-P091  a condition does not fit the columns of its view
├── SinkError                HW-P010  a store refused or could not be reached
│   ├── SinkUnavailableError HW-P011  a store does not answer, or asks to come back later
│   ├── SinkRefusedError     HW-P012  a store refuses what is written
│   ├── UnholdableValueError HW-P013  a value has no exact form in a store
│   ├── NoStoredRowError     HW-P014  an unchanged value is not there to be kept
│   ├── WriterLockedError    HW-P015  another writer holds the tables
│   ├── LoadFailedError      HW-P016  a table could not be filled directly from the source
│   ├── WriterFencedError    HW-P017  another driver writes the views now
│   ├── TableTornError       HW-P018  the log of a view's table is torn
│   ├── SinkReadOnlyError    HW-P065  a store takes no writes for now
│   ├── IndexRefusedError    HW-P066  the search engine refuses the index of a view
│   ├── IndexLostError       HW-P067  a view's search index is gone, or is not the one it was
│   └── CacheError           HW-P060  the cache is unreliable or refuses writes for now
│       ├── CacheLostError     HW-P061  the cache has lost data
│       ├── CacheFullError     HW-P062  the cache's memory is full
│       └── CacheReadOnlyError HW-P063  the cache takes no writes
├── CacheUnknownError        HW-P064  the cache has nothing of that name
├── ReplayError              HW-P105  the archive cannot be replayed
│   ├── ArchiveMissingError  HW-P106  there is no archive of the source
│   ├── ArchiveIncompleteError HW-P107  records are missing that a view needs from the archive
│   ├── ReplayStoppedError   HW-P108  a replay was stopped
│   ├── BulkLostError        HW-P153  the job's Spark cannot do its part of a rebuild
│   ├── RebuildSpaceError    HW-P158  a disk is full that a rebuild by Spark needs
│   └── MomentUnreadableError HW-P109  the archive cannot tell what rows were at that position
├── JobError                 HW-P020  the streaming job refuses to continue
│   ├── TruncateError        HW-P021  a table of events was truncated
│   ├── KeylessChangeError   HW-P022  a table without a key was updated or deleted from
│   ├── TopicsMissingError   HW-P023  topics of the views do not exist
│   ├── QueryFailedError     HW-P025  a streaming query fails repeatedly
│   ├── AttendantFailedError HW-P029  a background task of the job fails
│   ├── SparkEndedError      HW-P026  the driver's JVM ended by itself
│   ├── EventUnreadableError HW-P027  an event is not what this program's declarations say
│   ├── RecordsLostError     HW-P028  records that a query wants next are gone
│   ├── CheckpointForeignError HW-P110 a checkpoint belongs to another query
│   ├── CheckpointTornError  HW-P111  a checkpoint cannot be read at all
│   └── ClusterError         HW-P100  the cluster of the job cannot be used
│       ├── MasterUnreachableError HW-P101  no master of that cluster answers
│       ├── NoExecutorsError       HW-P102  the cluster gives the job no executor
│       ├── FolderNotSharedError   HW-P103  an executor does not see the folder of the tables
│       └── BatchSupersededError   HW-P104  a later batch has begun meanwhile
├── QuarantineError          HW-P040  quarantined records could not be stored or read
│   ├── QuarantineFullError  HW-P041  a view has more quarantined records than allowed
│   ├── ViewOverfullError    HW-P157  a view is paused for too many quarantined records
│   ├── QuarantineDownError  HW-P042  the database of the quarantine does not answer
│   └── WaitsBehindError     HW-P043  a change waits because an earlier one of its key does
├── ViewShapeError           HW-P050  a view does not have the columns of its table
│   ├── ViewPausedError      HW-P051  a view is paused because its table has changed
│   └── UnknownShapeError    HW-P052  a record has columns that are not in the schema history
├── StableTableError         HW-P120  a view's stable table cannot follow its published version
│   ├── LogUnreadableError   HW-P121  the needed part of a table's log cannot be read
│   ├── LogWrittenError      HW-P122  another writer has written to a stable table
│   ├── PlaceUnpublishedError HW-P123 a version of a view that is to become active is unpublished
│   └── PlaceBehindError     HW-P124  readers of a view would see an earlier state
├── ForgettingRefusedError   HW-P144  keys cannot be erased as requested
├── AlertError               HW-P145  an alert cannot be evaluated or delivered
│   ├── AlertConditionError  HW-P146  an alert's condition cannot be evaluated
│   ├── AlertSignatureError  HW-P147  a message is not signed as it should be
│   └── AlertUndeliveredError HW-P148 a receiver has not accepted a message
├── StandingQueryError       HW-P149  a standing query cannot be parsed
├── EffectKeyError           HW-P152  a change without a key of its row cannot have effects
├── VerificationError        HW-P030  views could not be compared
│   ├── NotCaughtUpError     HW-P031  views did not reach the position in time
│   │   └── BehindError      HW-P033  of one view, with the stage that is behind: `read_barrier`
│   ├── RepairRefusedError   HW-P034  reading rows again cannot repair the difference
│   └── TraceError           HW-P032  a row cannot be followed from its commits to the stores
├── VersionError             HW-P130  versions of a view do not allow the operation
│   ├── VersionBusyError     HW-P131  another command holds the versions of the view
│   ├── VersionUnknownError  HW-P132  a view has no such version
│   ├── VersionBehindError   HW-P133  a version is behind the active one
│   ├── VersionDiffersError  HW-P134  a version has differences that its definition does not explain
│   ├── DefinitionUnreadableError HW-P135  a kept definition cannot be read
│   ├── RebuildRefusedError  HW-P136  a view cannot be rebuilt like that
│   ├── RebuildStoppedError  HW-P137  a rebuild was paused and continues on request
│   ├── SwitchUnfinishedError HW-P150 a cutover is recorded, and unfinished in some stores
│   └── FunctionLostError    HW-P151  the stored function of a version is gone
├── ExpectationError         HW-P090  a row is not as its view expects
│   ├── RowUnexpectedError   HW-P092  a row waits because it is not as expected
│   └── ViewHaltedError      HW-P093  a view is paused because a row is not as expected
└── SearchError              HW-P070  a search cannot be answered
    ├── NoIndexError         HW-P071  no view of that name can be searched
    ├── SearchFieldError     HW-P072  a view has no such field, or it cannot be used like that
    └── SearchQueryError     HW-P073  a search cannot be carried out as written
"""

from __future__ import annotations

from foundation.errors import EXIT_USAGE, PlatformError


class ProjectionError(PlatformError):
    """Root of this package's errors."""

    code = "HW-P000"


class DeclarationError(ProjectionError):
    """The declaration of a view or source is invalid."""

    code = "HW-P001"
    exit_code = EXIT_USAGE


class SeveralSourcesError(DeclarationError):
    """A derived view reads one that the job of another source combines from several."""

    code = "HW-P154"


class PlanError(ProjectionError):
    """A declared view does not fit the tables of the source."""

    code = "HW-P002"
    exit_code = EXIT_USAGE


class ConditionError(PlanError):
    """An expectation's condition names a missing column, or compares unlike types."""

    code = "HW-P091"


class SinkError(ProjectionError):
    """A store could not write a batch; no part of the batch counts as written."""

    code = "HW-P010"
    retriable = True


class SinkUnavailableError(SinkError):
    """A store does not answer, or is too busy."""

    code = "HW-P011"


class SinkRefusedError(SinkError):
    """A store rejects a write."""

    code = "HW-P012"
    retriable = False


class UnholdableValueError(SinkError):
    """A value of the source has no exact representation in a store; it is never altered."""

    code = "HW-P013"
    retriable = False


class NoStoredRowError(SinkError):
    """A change omits an unchanged value that no stored row has; the change waits for it."""

    code = "HW-P014"
    retriable = False


class WriterLockedError(SinkError):
    """Another driver, or a process of an ended driver, may still write to this home folder.

    The detail names the process.
    """

    code = "HW-P015"
    retriable = False


class WriterFencedError(SinkError):
    """Another driver has the lock of the home folder; this one must not write any more."""

    code = "HW-P017"
    retriable = False


class LoadFailedError(SinkError):
    """A view's new table could not be loaded directly from the source; the stream fills it."""

    code = "HW-P016"
    retriable = True


class TableTornError(SinkError):
    """The log of a view's Delta table lacks a commit, or contains an unreadable one.

    Nothing is written to it: the other stores go on, and this one once the table was moved away.
    """

    code = "HW-P018"


class SinkReadOnlyError(SinkUnavailableError):
    """A store is read-only: its disk is nearly full, or an operator has set it so."""

    code = "HW-P065"


class IndexRefusedError(SinkRefusedError):
    """The search engine refuses a view's index, for instance because it lacks an analyzer."""

    code = "HW-P066"


class IndexLostError(SinkError):
    """A view's search index was deleted or replaced.

    It was deleted or restored; the job's next start takes a new snapshot of the view's table.
    """

    code = "HW-P067"
    retriable = False


class FeedLostError(SinkError):
    """The change feed of a derived view's table no longer covers the changes that a store lacks.

    All its rows are written to the store again, and older ones are removed there.
    """

    code = "HW-P083"


class CacheError(SinkUnavailableError):
    """The cache has lost data, or cannot be written."""

    code = "HW-P060"


class CacheLostError(CacheError):
    """The cache has lost writes: it was emptied, restored, or restarted without its data.

    Its views are read again by themselves.
    """

    code = "HW-P061"


class CacheFullError(CacheError):
    """The cache's memory is full; batches are retried."""

    code = "HW-P062"


class CacheReadOnlyError(CacheError):
    """The cache is a replica, or has become one; batches are retried."""

    code = "HW-P063"


class CacheUnknownError(ProjectionError):
    """The cache has no such view, or the view no such lookup, counter or leaderboard."""

    code = "HW-P064"
    exit_code = EXIT_USAGE


class JobError(ProjectionError):
    """The streaming job refuses to continue."""

    code = "HW-P020"


class TruncateError(JobError):
    """A table of events was truncated; a view of events does not follow that."""

    code = "HW-P021"


class KeylessChangeError(JobError):
    """A table without a key was updated or deleted from; its view follows only inserts.

    Attributes:
        version: Log position of the change; None if it is not known.
    """

    code = "HW-P022"

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        version: int | None = None,
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.version = version


class TopicsMissingError(JobError):
    """A topic that the views read did not appear in time."""

    code = "HW-P023"
    retriable = True


class QueryFailedError(JobError):
    """A streaming query failed repeatedly, for a cause without a code of its own."""

    code = "HW-P025"
    retriable = True


class AttendantFailedError(JobError):
    """A background task of the job failed, for a cause without a code of its own.

    It is restarted; when it fails again and again the job ends.
    """

    code = "HW-P029"
    retriable = True


class SparkEndedError(JobError):
    """The driver's JVM ended unexpectedly; the job can be restarted."""

    code = "HW-P026"
    retriable = True


class EventUnreadableError(JobError):
    """An event of a view's types cannot be read: a later version, a gap in the upcasters.

    Views never pass over an event; the detail names the event store's own code.
    """

    code = "HW-P027"


class RecordsLostError(JobError):
    """A query's next records are lost: the topic has deleted them, or was recreated.

    The detail names topic, partition and both offsets; starting the query again does not help.
    """

    code = "HW-P028"


class CheckpointForeignError(JobError):
    """A checkpoint belongs to another query, source or home folder.

    What its query had never had would be passed over, so it is not used.
    """

    code = "HW-P110"


class CheckpointTornError(JobError):
    """A checkpoint is damaged beyond every readable batch, and the topics have deleted records.

    Where the topics have all their records yet, the query takes them again from the first.
    """

    code = "HW-P111"


class ClusterError(JobError):
    """The Spark cluster cannot run the job; the detail is Spark's own message."""

    code = "HW-P100"
    retriable = True


class MasterUnreachableError(ClusterError):
    """No Spark master answers at the address in `spark.master`."""

    code = "HW-P101"


class NoExecutorsError(ClusterError):
    """The cluster provides no executor: it has no worker with free capacity."""

    code = "HW-P102"


class FolderNotSharedError(ClusterError):
    """An executor cannot see or write the driver's home folder.

    Tables, archive and checkpoints lie in it, so all machines of a cluster need it under one path.
    """

    code = "HW-P103"
    retriable = False


class BatchSupersededError(ClusterError):
    """A task belongs to an abandoned batch: a later batch of the tables has begun."""

    code = "HW-P104"


class QuarantineError(ProjectionError):
    """Quarantined records could not be stored or read."""

    code = "HW-P040"


class QuarantineFullError(QuarantineError):
    """A view has more quarantined records in a store than allowed: a general fault."""

    code = "HW-P041"

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        view: str = "",
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.view = view


class ViewOverfullError(QuarantineError):
    """A view has more quarantined records than allowed, and is paused; other views continue."""

    code = "HW-P157"
    retriable = True


class QuarantineDownError(QuarantineError):
    """The source database, which stores quarantined records, does not answer."""

    code = "HW-P042"
    retriable = True


class WaitsBehindError(QuarantineError):
    """A change waits because an earlier change of its key is quarantined."""

    code = "HW-P043"


class ViewShapeError(ProjectionError):
    """The columns of a view and its table, or of a table and a record, differ."""

    code = "HW-P050"


class ViewPausedError(ViewShapeError):
    """A view is paused in all its stores because its table has changed; others continue."""

    code = "HW-P051"


class UnknownShapeError(ViewShapeError):
    """A record has columns of an unrecorded schema change; the batch is retried after it is read.

    Where a view keeps its columns (`quarantine`), such a record waits until the view is resumed.
    """

    code = "HW-P052"
    retriable = True


class ExpectationError(ProjectionError):
    """A row does not meet an expectation of its view."""

    code = "HW-P090"


class RowUnexpectedError(ExpectationError):
    """A row does not meet an expectation, and its record is quarantined."""

    code = "HW-P092"


class ViewHaltedError(ExpectationError):
    """A row does not meet an expectation that pauses its view; other views continue.

    The detail names the partition and offset of the row's record, or the boundary of a derived
    view.
    """

    code = "HW-P093"
    retriable = True


class StableTableError(ProjectionError):
    """A view's stable path cannot be updated; it keeps its present version."""

    code = "HW-P120"


class LogUnreadableError(StableTableError):
    """The log of a Delta table cannot be read far enough."""

    code = "HW-P121"


class LogWrittenError(StableTableError):
    """Another process has written to a stable path; the published version is written again."""

    code = "HW-P122"
    retriable = True


class PlaceUnpublishedError(StableTableError):
    """A view's physical name has no published version."""

    code = "HW-P123"


class PlaceBehindError(StableTableError):
    """A switch would move a view to an earlier boundary."""

    code = "HW-P124"


class VersionError(ProjectionError):
    """The versions of a view do not allow the operation."""

    code = "HW-P130"


class VersionBusyError(VersionError):
    """Another operation uses the versions of the view."""

    code = "HW-P131"
    retriable = True


class VersionUnknownError(VersionError):
    """A view does not have this version, or no longer has it."""

    code = "HW-P132"


class VersionBehindError(VersionError):
    """A version lags the active version."""

    code = "HW-P133"
    retriable = True


class VersionDiffersError(VersionError):
    """A version has unexplained differences, or its derived views do not fit.

    It is compared with the active version; the detail names the differences, and the views that
    would pause.
    """

    code = "HW-P134"


class DefinitionUnreadableError(VersionError):
    """A stored definition of a view cannot be read."""

    code = "HW-P135"


class RebuildRefusedError(VersionError):
    """A view cannot be rebuilt as requested."""

    code = "HW-P136"


class SwitchUnfinishedError(VersionError):
    """A cutover is complete in some stores; the job completes the others."""

    code = "HW-P150"
    retriable = True


class FunctionLostError(VersionError):
    """The stored function of a view version is missing or was altered."""

    code = "HW-P151"


class RebuildStoppedError(VersionError):
    """A rebuild was paused; the same command resumes it."""

    code = "HW-P137"
    retriable = True


class ForgettingRefusedError(ProjectionError):
    """Keys cannot be forgotten as requested; nothing was erased."""

    code = "HW-P144"


class EffectKeyError(ProjectionError):
    """A change of a table without a key has nothing to tell its effects from another row's by."""

    code = "HW-P152"


class VerificationError(ProjectionError):
    """Views could not be compared with their source."""

    code = "HW-P030"


class RepairRefusedError(VerificationError):
    """Reading rows again cannot repair the view."""

    code = "HW-P034"


class NotCaughtUpError(VerificationError):
    """Views did not reach a position in time."""

    code = "HW-P031"
    retriable = True


class TraceError(VerificationError):
    """A row cannot be followed from its commits to the stores."""

    code = "HW-P032"


class SearchError(ProjectionError):
    """A search cannot be answered."""

    code = "HW-P070"
    exit_code = EXIT_USAGE


class NoIndexError(SearchError):
    """No view of that name can be searched."""

    code = "HW-P071"


class SearchFieldError(SearchError):
    """A view has no field of that name, or the field does not support this use."""

    code = "HW-P072"


class SearchQueryError(SearchError):
    """A search query is invalid."""

    code = "HW-P073"


class ReplayError(ProjectionError):
    """The archive cannot be replayed."""

    code = "HW-P105"


class ArchiveMissingError(ReplayError):
    """The source has no archive, or an unreadable one."""

    code = "HW-P106"


class ArchiveIncompleteError(ReplayError):
    """The archive lacks records that a view needs; the detail names topic and offsets."""

    code = "HW-P107"


class ReplayStoppedError(ReplayError):
    """A replay was stopped; it can be resumed."""

    code = "HW-P108"
    retriable = True


class BulkLostError(ReplayError):
    """The job's Spark cannot do its part of a rebuild: the command goes on without it."""

    code = "HW-P153"
    retriable = True


class RebuildSpaceError(ReplayError):
    """A disk or a quota is full that a rebuild by Spark needs; it resumes once space is free."""

    code = "HW-P158"
    retriable = True


class MomentUnreadableError(ReplayError):
    """The archive does not cover a position; the detail names one that it covers."""

    code = "HW-P109"


class StandingQueryError(ProjectionError):
    """A standing query cannot be parsed."""

    code = "HW-P149"


class AlertError(ProjectionError):
    """An alert cannot be evaluated, or its messages cannot be sent."""

    code = "HW-P145"


class AlertConditionError(AlertError):
    """An alert's condition cannot be evaluated, or too many rows meet it."""

    code = "HW-P146"


class AlertSignatureError(AlertError):
    """A message's signature is invalid, or a secret cannot be read."""

    code = "HW-P147"


class AlertUndeliveredError(AlertError):
    """A channel did not accept a message; it is retried."""

    code = "HW-P148"
    retriable = True


class DerivationError(ProjectionError):
    """A derived view cannot be maintained."""

    code = "HW-P080"


class ViewQueryError(DerivationError):
    """The query of a derived view is invalid: its text, its inputs or its columns."""

    code = "HW-P081"


class DuplicateKeyError(DerivationError):
    """The declared key of a derived view does not identify its rows.

    Attributes:
        example: Values of one such key, in the order of the key's columns. A row's values are for
            the person who asks: neither the message nor the detail has them, so no log does.
    """

    code = "HW-P082"

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        example: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.example = example
