"""Errors of projections.

ProjectionError
├── DeclarationError   HW-P001  a view is declared wrongly
├── PlanError          HW-P002  a view does not fit the source's tables
├── SinkError          HW-P01x  a store refused or could not be reached
├── JobError           HW-P02x  the streaming job refuses to go on
└── VerificationError  HW-P03x  views could not be compared
"""

from __future__ import annotations

from typing import ClassVar


class ProjectionError(Exception):
    """Root of this package's errors.

    Args:
        message: Lowercase fact without a full stop.
        detail: What was seen; never a secret or a row's value.
        hint: What repairs it.
    """

    code: ClassVar[str] = "HW-P000"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # errors cross from Spark's worker processes to the driver with all they carry
        return _rebuild, (type(self), self.message, self.detail, self.hint)


def _rebuild(
    kind: type[ProjectionError], message: str, detail: str | None, hint: str | None
) -> ProjectionError:
    return kind(message, detail=detail, hint=hint)


class DeclarationError(ProjectionError):
    """A view or source is declared wrongly, whatever the database looks like."""

    code = "HW-P001"


class PlanError(ProjectionError):
    """A declared view does not fit the tables that the source has."""

    code = "HW-P002"
