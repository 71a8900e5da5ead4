"""Channels: delivers messages to webhooks, topics and functions.

A trial sends a message to each channel of an alert, to detect errors before a real alert.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import orjson
import urllib3

from cdc.broker.errors import BrokerError
from cdc.broker.producing.record_sender import RecordSender
from projections.alerting.signature import signed
from projections.alerting.tables import QueuedMessage
from projections.definition.alert import Event, Handler, Message, Topic, Webhook
from projections.errors import AlertUndeliveredError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.definition.alert import Alert, Channel

TIMEOUT_S: Final = 10.0
_OK: Final = range(200, 300)
_MESSAGES: Final = msgspec.json.Decoder(Message)


class ChannelSender:
    """Delivers messages to channels.

    Args:
        bootstrap: Kafka, `host:port[,host:port]`.
        secrets: Secrets for signing webhooks, by name.
    """

    def __init__(self, bootstrap: str, secrets: Mapping[str, str]) -> None:
        self._secrets = secrets
        self._records = RecordSender(bootstrap)
        # no redirects: the other server would receive the message and its signature
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(total=TIMEOUT_S), retries=False, maxsize=2
        )

    def send(self, channel: Channel, message: QueuedMessage) -> None:
        """Sends a message.

        Raises:
            AlertUndeliveredError: It was not accepted, or that is unknown.
        """
        if isinstance(channel, Webhook):
            self._post_webhook(channel, message)
        elif isinstance(channel, Topic):
            self._send_to_topic(channel, message)
        else:
            _call_handler(channel, message)

    def close(self) -> None:
        """Closes the connections."""
        self._records.close()
        self._pool.clear()

    def _post_webhook(self, channel: Webhook, message: QueuedMessage) -> None:
        secret = self._secrets.get(channel.secret)
        if secret is None:
            raise AlertUndeliveredError(
                f"{channel.name} has no secret to sign with",
                detail="no secret",
                hint=f"in the settings: alerts.secrets.{channel.secret}",
            )
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": message.id,
            **signed(message.id, message.body, secret),
        }
        try:
            answer = self._pool.request(
                "POST", channel.url, body=message.body, headers=headers, redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise _not_accepted(channel, type(error).__name__) from None
        if answer.status not in _OK:
            raise _not_accepted(channel, f"HTTP {answer.status}")

    def _send_to_topic(self, channel: Topic, message: QueuedMessage) -> None:
        key = f"{message.alert}:{message.key}".encode()
        try:
            self._records.send(channel.topic, key, message.body, {"id": message.id})
        except BrokerError as error:
            raise _not_accepted(channel, error.code) from None


def message_of(message: QueuedMessage) -> Message:
    """Returns the content of a message."""
    return _MESSAGES.decode(message.body)


def _call_handler(channel: Handler, message: QueuedMessage) -> None:
    try:
        channel.function(message_of(message))
    except Exception as error:  # noqa: BLE001  # a handler of the project may raise anything
        raise _not_accepted(channel, type(error).__name__) from None


def _not_accepted(channel: Channel, why: str) -> AlertUndeliveredError:
    return AlertUndeliveredError(f"{channel.name} did not accept a message", detail=why)


_DIGITS: Final = 8


class ChannelResult(NamedTuple):
    """The result of a trial.

    Attributes:
        why: Why the channel did not accept the message; None if it did.
    """

    channel: str
    why: str | None


def run(sender: ChannelSender, source: str, alert: Alert) -> list[ChannelResult]:
    """Sends a test message to each channel of an alert; its event is `test`, and it has no row.

    Args:
        sender: Sends messages.
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
        message = QueuedMessage(0, alert.name, "", channel.name, message_id, written, 0)
        try:
            sender.send(channel, message)
            tried.append(ChannelResult(channel.name, None))
        except AlertUndeliveredError as error:
            tried.append(ChannelResult(channel.name, error.detail or error.code))
    return tried
