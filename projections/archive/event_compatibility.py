"""Stored events that no upcaster converts to the declared version.

A replay would quarantine them, and the view would lack them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventstore.errors import UndeclaredError
from projections.definition.views import EventsView
from projections.errors import RebuildRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from projections.definition.views import View

_STORED: Final = """
SELECT EXISTS (SELECT FROM eventstore.events
                WHERE type = %(type)s AND schema_version = %(version)s)
    OR EXISTS (SELECT FROM eventstore.archived_events
                WHERE type = %(type)s AND schema_version = %(version)s)
"""


class UnreadEvents(NamedTuple):
    """Events of a view that its declarations cannot read.

    Attributes:
        name: Their type.
        version: Their stored version.
        error: What is missing, and how to repair it.
    """

    name: str
    version: int
    error: UndeclaredError


def refuse_unread(connection: psycopg.Connection[Any], view: View) -> None:
    """Refuses a rebuild of a view of events if some of them cannot be read.

    Args:
        connection: To the source.
        view: The view, with its new declarations.

    Raises:
        RebuildRefusedError: There are such events.
    """
    unread = unread_events(connection, view) if isinstance(view, EventsView) else []
    if unread:
        raise RebuildRefusedError(
            f"events of view {view.name} cannot be read: it would be built without them",
            detail="; ".join(
                f"version {each.version} of {each.name} is in the store: {each.error.message}"
                for each in unread
            ),
            hint=unread[0].error.hint,
        )


def unread_events(connection: psycopg.Connection[Any], view: EventsView) -> list[UnreadEvents]:
    """Returns the stored events of a view that cannot be read.

    Args:
        connection: To the source.
        view: The view, with its new declarations.
    """
    return [each for each in gaps(view) if _stored(connection, each)]


def gaps(view: EventsView) -> Iterator[UnreadEvents]:
    """Yields the versions of a view's events that could not be read if they existed."""
    registry = view.events.registry
    for name in view.events.types:
        for version in range(1, registry.named(name).version):
            try:
                registry.path(name, version)
            except UndeclaredError as error:
                yield UnreadEvents(name, version, error)


def _stored(connection: psycopg.Connection[Any], events: UnreadEvents) -> bool:
    parameters = {"type": events.name, "version": events.version}
    row = connection.execute(_STORED, parameters).fetchone()
    return bool(row and row[0])
