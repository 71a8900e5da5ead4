"""Inputs of a process besides events, and its reactions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from eventstore.deciding.context import check_instant
from eventstore.errors import SubscriptionError
from eventstore.model.callables import check_kind
from eventstore.model.names import check_label

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A timer scheduled by the process has expired.

    Attributes:
        name: Name of the timer.
        due_at: When it was due.
    """

    name: str
    due_at: datetime


@dataclass(frozen=True, slots=True)
class CommandRejected:
    """The domain's rules refused a command that the process dispatched.

    Attributes:
        command: Name of the command's class.
        reason: Name of the class of the `Rejected` error.
    """

    command: str
    reason: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Handles a command once. If it is refused, the process receives a `CommandRejected`.

    Attributes:
        command: A command of a class that a decider of the store handles.
    """

    command: Any


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sets a timer; it replaces a timer of the same name.

    Attributes:
        name: Names it within the process.
        after: Delay from now, by the database's clock.
        at: Instant with an offset; set either this or `after`.
    """

    name: str
    after: timedelta | None = None
    at: datetime | None = None

    def __post_init__(self) -> None:
        check_label("timer", self.name)
        check_instant("at", self.at)
        if self.after is not None:
            check_kind(f"after of timer {self.name}", self.after, timedelta, "timedelta(minutes=5)")
        if (self.after is None) == (self.at is None):
            raise SubscriptionError(
                "a timer needs exactly one of after and at", detail=f"timer {self.name}"
            )


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels a timer; has no effect if the timer does not exist.

    Attributes:
        name: Name of the timer.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Complete:
    """Ends the process after it has reacted to all refusals of the current input.

    Its timers are cancelled, and it ignores further events.
    """


Reaction: TypeAlias = Dispatch | Schedule | Cancel | Complete
