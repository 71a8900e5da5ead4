"""Errors of search requests."""

from __future__ import annotations

from foundation.errors import EXIT_USAGE
from projections.errors.base import ProjectionError


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
