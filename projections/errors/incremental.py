"""Errors of derived views."""

from __future__ import annotations

from projections.errors.base import ProjectionError


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
