"""Context: who caused an event, why, and when it happened; stored with each event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import BatchRefusedError, WrongKindError
from eventstore.model.callables import check_kind

if TYPE_CHECKING:
    from uuid import UUID

    from eventstore.model.event import StoredEvent
    from eventstore.privacy.personal_tags import PersonalTag
    from eventstore.serialization.recorded import RecordedEvent


@dataclass(frozen=True, slots=True)
class Context:
    """Metadata of an append or a command.

    Attributes:
        correlation_id: The business flow to which it belongs.
        causation_id: The message that caused it.
        actor: The user or program that performs it.
        occurred_at: When it happened, by the source's clock, with a UTC offset; default: now.
    """

    correlation_id: str | None = None
    causation_id: str | None = None
    actor: str | None = None
    occurred_at: datetime | None = None

    def __post_init__(self) -> None:
        check_instant("occurred_at", self.occurred_at)

    @classmethod
    def caused_by(cls, event: RecordedEvent | StoredEvent, *, actor: str | None = None) -> Context:
        """Returns the context of a command or append caused by an event.

        Args:
            event: The cause. Its flow goes on; if it has none, it begins one.
            actor: Who acts on it; the event's actor if not given.
        """
        return cls(
            correlation_id=event.correlation_id or str(event.event_id),
            causation_id=str(event.event_id),
            actor=actor or event.actor,
        )


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An event with metadata of its own, for an append of facts from another system.

    Attributes:
        event: The event.
        event_id: Its identity at the source; default: a new one. An append of events that are
            already stored under the same ids returns its first result; in a transaction of yours,
            only with an idempotency key.
        occurred_at: When it happened, with a UTC offset; default: the context's time.
        tags: Tags in addition to those of its type.
    """

    event: object
    event_id: UUID | None = None
    occurred_at: datetime | None = None
    tags: tuple[str | PersonalTag, ...] = ()

    def __post_init__(self) -> None:
        check_instant("occurred_at", self.occurred_at)
        if self.tags.__class__ is not tuple:
            object.__setattr__(self, "tags", _tags(self.tags))


def _tags(tags: Any) -> tuple[Any, ...]:
    """Returns tags that can be encoded several times; a generator's would be gone after once."""
    if tags is None:
        return ()
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise WrongKindError(
            "the tags of an occurrence must be a collection of tags",
            detail=f"an object of {type(tags).__qualname__}",
            hint='also for one tag: tags=("customer:c1",)',
        )
    return tuple(tags)


def occurrences(events: Any) -> list[Occurrence]:
    """Returns events, bare or not, one or several, as occurrences."""
    return [
        event if event.__class__ is Occurrence else Occurrence(event) for event in listed(events)
    ]


def listed(events: Any) -> tuple[Any, ...]:
    """Returns what a caller or a `decide` gave as a tuple: None, one event, or several."""
    if events is None:
        return ()
    if isinstance(events, tuple | list):
        return tuple(events)
    if hasattr(events, "__dataclass_fields__") or not hasattr(events, "__iter__"):
        return (events,)
    given: Iterable[Any] = events
    return tuple(given)


def check_instant(what: str, instant: datetime | None) -> datetime | None:
    """Returns an instant that has an offset, or None.

    Raises:
        WrongKindError: It is no datetime, such as a text or a date.
        BatchRefusedError: It has no offset, so it is no instant.
    """
    if instant is not None:
        check_kind(what, instant, datetime, "datetime.now(UTC)")
    if instant is not None and instant.utcoffset() is None:
        raise BatchRefusedError(
            "an instant needs a UTC offset", detail=what, hint="datetime.now(UTC)"
        )
    return instant


NO_CONTEXT: Final = Context()
