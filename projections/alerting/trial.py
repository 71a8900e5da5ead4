"""A trial: each channel of an alert is sent a message, so that it fails before it is needed."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from projections.alerting.tables import Letter
from projections.definition.alert import Event
from projections.errors import AlertUndeliveredError

if TYPE_CHECKING:
    from projections.alerting.channels import Post
    from projections.definition.alert import Alert

_DIGITS: Final = 8


class Tried(NamedTuple):
    """What became of a trial.

    Attributes:
        channel: Name of the channel.
        why: Why it was not taken; None if it was.
    """

    channel: str
    why: str | None


def run(post: Post, source: str, alert: Alert) -> list[Tried]:
    """Sends a message to each channel of an alert; its event is `test`, and it has no row.

    Args:
        post: Brings it.
        source: Name of the source.
        alert: The alert.
    """
    now = datetime.now(UTC)
    message_id = f"{source}.{alert.name}.{secrets.token_hex(_DIGITS)}.{Event.TEST}"
    body = {
        "id": message_id,
        "alert": alert.name,
        "event": Event.TEST,
        "view": alert.view,
        "key": {},
        "since": now,
        "at": now,
        "position": "0/0",
        "row": None,
    }
    written = orjson.dumps(body, option=orjson.OPT_UTC_Z)
    tried = []
    for channel in alert.to:
        letter = Letter(0, alert.name, "", channel.name, message_id, written, 0)
        try:
            post.bring(channel, letter)
            tried.append(Tried(channel.name, None))
        except AlertUndeliveredError as error:
            tried.append(Tried(channel.name, error.detail or error.code))
    return tried
