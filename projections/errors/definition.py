"""Errors of declarations, and of plans that bind them to the source's tables."""

from __future__ import annotations

from foundation.errors import EXIT_USAGE
from projections.errors.base import ProjectionError


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


class StandingQueryError(ProjectionError):
    """A standing query cannot be parsed."""

    code = "HW-P149"
