"""How failures are printed, and the exit code of each; loaded when there is one."""

from __future__ import annotations

from typing import TypeAlias

from rich.markup import escape

from cdc.continuity.errors import ContinuityError
from cdc.errors import CdcError, TokenForeignError, TokenMalformedError
from cdc.snapshot.errors import ReadRefusedError, ReadUnknownError
from eventstore import errors as event_store
from eventstore.errors import EventStoreError
from headwater.cli.output import EXIT_UNHEALTHY, EXIT_USAGE, print_json, stderr
from headwater.errors import HeadwaterError
from projections.errors import (
    BoundsError,
    CacheUnknownError,
    DeclarationError,
    PlanError,
    ProjectionError,
    SearchError,
)
from projections.read_barrier import BehindError

PLATFORM_ERRORS = (HeadwaterError, CdcError, ProjectionError, EventStoreError)
PlatformError: TypeAlias = HeadwaterError | CdcError | ProjectionError | EventStoreError

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


def print_error(error: PlatformError, *, as_json: bool) -> None:
    """Prints what failed, what was seen, and what repairs it.

    An example is a row's own, for the person who asks; no log has it.
    """
    example: tuple[str, ...] = getattr(error, "example", ())
    if as_json:
        said = {
            "code": error.code,
            "message": error.message,
            "detail": error.detail,
            "hint": error.hint,
            "retriable": error.retriable,
        }
        print_json({"error": {**said, "example": list(example)} if example else said})
        return
    stderr.print(f"[bold red]error[/] [dim]{error.code}[/] {escape(error.message)}", soft_wrap=True)
    if error.detail:
        stderr.print(f"  [dim]seen[/]   {escape(error.detail)}", soft_wrap=True)
    if example:
        stderr.print(f"  [dim]such as[/] {escape(', '.join(example))}", soft_wrap=True)
    if error.hint:
        stderr.print(f"  [dim]repair[/] {escape(error.hint)}", soft_wrap=True)


def exit_code_of(error: PlatformError) -> int:
    """Returns the exit code that DESIGN's table gives to a failure."""
    if isinstance(error, HeadwaterError):
        return error.exit_code
    if isinstance(error, _USAGE):
        return EXIT_USAGE
    return EXIT_UNHEALTHY if isinstance(error, _UNHEALTHY) else 1
