"""Errors of the stores: tables, search engine, cache."""

from __future__ import annotations

from foundation.errors import EXIT_USAGE
from projections.errors.base import ProjectionError


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
