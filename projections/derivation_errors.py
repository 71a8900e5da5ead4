"""Errors of derived views; the tree stands in `projections.errors`.

DerivationError            HW-P080  a derived view cannot be kept
├── ViewQueryError         HW-P081  the query of a view cannot be taken
└── DuplicateKeyError      HW-P082  the key of a view does not identify its rows
"""

from __future__ import annotations

from projections.errors import ProjectionError


class DerivationError(ProjectionError):
    """A derived view cannot be kept."""

    code = "HW-P080"


class ViewQueryError(DerivationError):
    """The query of a derived view cannot be taken: its text, its inputs or its columns."""

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

    def __reduce__(self) -> tuple[object, ...]:
        return _duplicate, (self.message, self.detail, self.hint, self.example)


def _duplicate(
    message: str, detail: str | None, hint: str | None, example: tuple[str, ...]
) -> DuplicateKeyError:
    return DuplicateKeyError(message, detail=detail, hint=hint, example=example)
