"""Failures, and the exit code of each; loaded when there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.continuity.errors import ContinuityError
from cdc.errors import CdcError, TokenForeignError, TokenMalformedError
from cdc.snapshot.errors import ReadRefusedError, ReadUnknownError
from eventstore import errors as event_store
from eventstore.errors import EventStoreError
from headwater.cli.output import EXIT_UNHEALTHY, EXIT_USAGE
from headwater.errors import HeadwaterError
from projections.errors import (
    BoundsError,
    CacheUnknownError,
    DeclarationError,
    PlanError,
    ProjectionError,
    SearchError,
)
from projections.publishing.read_barrier import BehindError

if TYPE_CHECKING:
    from headwater.cli.output import PlatformError

PLATFORM_ERRORS = (HeadwaterError, CdcError, ProjectionError, EventStoreError)

_USAGE = (
    BoundsError,
    CacheUnknownError,
    DeclarationError,
    PlanError,
    ReadRefusedError,
    ReadUnknownError,
    SearchError,
    TokenForeignError,
    TokenMalformedError,
    event_store.NameRefusedError,
    event_store.EventRefusedError,
    event_store.BatchRefusedError,
    event_store.UndeclaredError,
    event_store.SubscriptionError,
)
_UNHEALTHY = (
    BehindError,
    ContinuityError,
    event_store.AuditError,
    event_store.CheckpointBeyondHeadError,
    event_store.SchemaMissingError,
)


def exit_code_of(error: PlatformError) -> int:
    """Returns the exit code that DESIGN's table gives to a failure."""
    if isinstance(error, HeadwaterError):
        return error.exit_code
    if isinstance(error, _USAGE):
        return EXIT_USAGE
    return EXIT_UNHEALTHY if isinstance(error, _UNHEALTHY) else 1
