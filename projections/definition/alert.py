"""Alert: one message when a row meets a condition, and another when it no longer does."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping  # noqa: TC003  # messages are read by their annotations
from dataclasses import dataclass, field
from datetime import datetime, timedelta  # noqa: TC003  # as above
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from projections.definition.operators.windows import duration
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable

_URL: Final = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[^/?#@:\s]+)(:\d{1,5})?([/?#]\S*)?")
_TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,248}")
_SECRET: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_DIGITS: Final = 8


class Event(StrEnum):
    """The kind of a message."""

    OPENED = "opened"
    RECOVERED = "recovered"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Message:
    """A message about a row.

    Attributes:
        id: The same for each delivery of the message: receivers skip ids that they have processed.
        alert: Name of the alert.
        event: The change of the row's state.
        view: The view.
        key: The row's key, by column.
        since: When the row was first seen to meet the condition.
        at: When this was recorded.
        position: The boundary of the source at which the view was read: `0/1A2B3C`.
        row: The row that meets the condition, as a document; None once it no longer does.
    """

    id: str
    alert: str
    event: Event
    view: str
    key: Mapping[str, Any]
    since: datetime
    at: datetime
    position: str
    row: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Webhook:
    """Delivers messages by a signed POST; see `projections.alerting.signature`.

    Attributes:
        url: The receiver's address; `http` or `https`.
        secret: Name of the secret to sign with, in the settings' `alerts.secrets`.
    """

    url: str = field(repr=False)
    secret: str

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.url):
            raise DeclarationError(
                "the URL of a webhook is invalid",
                hint="use https://host/path or http://, without a user name",
            )
        if not _SECRET.fullmatch(self.secret):
            raise DeclarationError(
                "a webhook takes the name of a secret, not the secret",
                hint='Webhook(url, secret="fraud"), and in the settings alerts.secrets.fraud',
            )

    @property
    def name(self) -> str:
        """Identifies the channel, without its URL, which may be a secret."""
        digest = hashlib.sha256(self.url.encode()).hexdigest()[:_DIGITS]
        match = _URL.fullmatch(self.url)
        return f"webhook {match[1] if match else ''} {digest}"


@dataclass(frozen=True, slots=True)
class Topic:
    """Delivers messages to a Kafka topic; the record key is the alert's name and the row's key.

    Attributes:
        topic: Name of the topic, which is created if it does not exist.
    """

    topic: str

    def __post_init__(self) -> None:
        if not _TOPIC.fullmatch(self.topic):
            raise DeclarationError("the topic name is invalid", detail=self.topic[:80])

    @property
    def name(self) -> str:
        """Identifies the channel."""
        return f"topic {self.topic}"


@dataclass(frozen=True, slots=True)
class Handler:
    """Delivers messages by calling a function in the process that watches the source.

    Attributes:
        function: Takes a `Message`; if it raises an exception, the call is repeated later.
    """

    function: Callable[[Message], object]

    @property
    def name(self) -> str:
        """Identifies the channel."""
        return f"handler {self.function.__module__}.{self.function.__qualname__}"


Channel = Webhook | Topic | Handler


@dataclass(frozen=True, slots=True)
class Recent:
    """Limits an alert to rows of the recent past; older rows are ignored.

    Attributes:
        column: Column with the time of a row; rows where it is NULL are not reported.
        within: How long a row is recent: `"7 days"`.
    """

    column: str
    within: str

    def __post_init__(self) -> None:
        duration(self.within)

    @property
    def length(self) -> timedelta:
        """Returns how long a row is recent."""
        return duration(self.within)


@dataclass(frozen=True, slots=True)
class Alert:
    """A condition on the rows of a view, and the channels that report them.

    Attributes:
        name: Name of the alert.
        view: Name of the view.
        where: Condition on a row, in the SQL of `headwater query`; empty for every row.
        hold: How long a row must meet the condition before it is reported.
        quiet: How long a row must not meet the condition before its recovery is reported.
        to: Channels.
        recent: Which rows are evaluated; None for all rows of the view.
    """

    name: str
    view: str
    where: str
    hold: timedelta
    quiet: timedelta
    to: tuple[Channel, ...]
    recent: Recent | None = None
