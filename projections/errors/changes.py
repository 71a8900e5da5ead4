"""Errors of records on their way to a store: quarantine, table columns, expectations."""

from __future__ import annotations

from projections.errors.base import ProjectionError


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


class EffectKeyError(ProjectionError):
    """A change of a table without a key has nothing to tell its effects from another row's by."""

    code = "HW-P152"
