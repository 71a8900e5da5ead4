"""What a process takes in besides events, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from eventstore.deciding.context import check_instant
from eventstore.errors import SubscriptionError
from eventstore.model.names import check_label

if TYPE_CHECKING:
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A timer that the process had scheduled was not cancelled in time.

    Attributes:
        name: Of the timer.
        due_at: When it was due.
    """

    name: str
    due_at: datetime


@dataclass(frozen=True, slots=True)
class CommandRejected:
    """A command that the process had dispatched was refused by the domain's rules.

    Attributes:
        command: Name of the command's class.
        reason: Name of the class of the refusal.
    """

    command: str
    reason: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Has a command handled, once. If it is refused, the process takes in a `CommandRejected`.

    Attributes:
        command: Of a class that a decider of the store takes.
    """

    command: Any


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sets a timer; it replaces a timer of the same name.

    Attributes:
        name: Names it within the process.
        after: How long from now, by the database's clock.
        at: When, with an offset; either this or `after`.
    """

    name: str
    after: timedelta | None = None
    at: datetime | None = None

    def __post_init__(self) -> None:
        check_label("timer", self.name)
        check_instant("at", self.at)
        if (self.after is None) == (self.at is None):
            raise SubscriptionError(
                "a timer is due after some time or at an instant", detail=f"timer {self.name}"
            )


@dataclass(frozen=True, slots=True)
class Cancel:
    """Takes a timer back; nothing happens if there is none.

    Attributes:
        name: Of the timer.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Complete:
    """Ends the process, once all refusals of this moment were reacted to.

    Its timers are taken back. It takes in no further events.
    """


Reaction: TypeAlias = Dispatch | Schedule | Cancel | Complete
