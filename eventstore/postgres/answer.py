"""Answer: checks that rows belong to the query that was sent.

If two processes or threads use one connection concurrently, one can receive the rows of the other's
query. The protocol does not detect that, and a decision on another stream's events would be stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.model.event import StoredEvent


def of_tenant(events: list[StoredEvent], tenant: str | None) -> list[StoredEvent]:
    """Returns events if they belong to a tenant; None stands for all tenants.

    Raises:
        StoreUnavailableError: They belong to another tenant.
    """
    if tenant is not None and events and not events[0].tenant == events[-1].tenant == tenant:
        raise _foreign()
    return events


def of_stream(events: list[StoredEvent], tenant: str, stream: str) -> list[StoredEvent]:
    """Returns events if they belong to a stream.

    Raises:
        StoreUnavailableError: They belong to another stream.
    """
    if events and not events[0].stream == events[-1].stream == stream:
        raise _foreign()
    return of_tenant(events, tenant)


def of_range(
    events: list[StoredEvent], tenant: str | None, after: int, through: int
) -> list[StoredEvent]:
    """Returns events if they are from a range of the log, `after < global position <= through`.

    Raises:
        StoreUnavailableError: They are outside that range.
    """
    ends: Sequence[StoredEvent] = (events[0], events[-1]) if events else ()
    if any(not after < event.global_position <= through for event in ends):
        raise _foreign()
    return of_tenant(events, tenant)


def _foreign() -> StoreUnavailableError:
    return StoreUnavailableError(
        "the database returned the answer to another query",
        detail="the events are of another stream, tenant or part of the log",
        hint="check whether another process or thread uses the same connection",
    )
