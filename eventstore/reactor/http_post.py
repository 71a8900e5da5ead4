"""HttpPost: sends a JSON document with the effect's key in the header `Idempotency-Key`."""

from __future__ import annotations

import http.client
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson

from eventstore.errors import DependencyAwayError, EffectRefusedError, SubscriptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TIMEOUT_S: Final = 10.0
IDEMPOTENCY_KEY: Final = "Idempotency-Key"

_OK: Final = range(200, 300)
_LATER: Final = frozenset({408, 425, 429, *range(500, 600)})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPost:
    """A POST of a JSON document. Any 2xx status is a success; redirects are not followed.

    408, 425, 429, 5xx and no response mean that the receiver is unavailable. Any other status is a
    refusal, which parks the event immediately.

    Attributes:
        url: `http` or `https`; may be a secret, and is never shown.
        body: An object that orjson can serialize, or bytes, which are sent unchanged.
        headers: Further headers.
        sign: Takes the key and the body, and returns headers that sign the body; for example
            `projections.alerting.signature.signed` with a secret.
        timeout_s: Timeout of the connection, and of each read of the response, in seconds.
    """

    url: str = field(repr=False)
    body: Any = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sign: Callable[[str, bytes], Mapping[str, str]] | None = None
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if not _possible(self.url):
            raise SubscriptionError(
                "an effect cannot be sent to such a URL",
                hint="https://host/path or http, without a user's name",
            )

    def perform(self, key: str) -> None:
        """Sends the request.

        Raises:
            DependencyAwayError: The receiver does not respond, or is temporarily unavailable.
            EffectRefusedError: The receiver refuses the request.
        """
        body = self.body if isinstance(self.body, bytes) else orjson.dumps(self.body)
        headers = {"Content-Type": "application/json", **self.headers, IDEMPOTENCY_KEY: key}
        if self.sign is not None:
            headers |= self.sign(key, body)
        status = self._status(body, headers)
        if status in _OK:
            return
        host = urlsplit(self.url).hostname
        if status in _LATER:
            raise DependencyAwayError(f"{host} takes no effect now", detail=f"HTTP {status}")
        raise EffectRefusedError(f"{host} refuses an effect", detail=f"HTTP {status}")

    def describe(self) -> str:
        """Returns the receiver's host."""
        return f"POST to {urlsplit(self.url).hostname}"

    def _status(self, body: bytes, headers: Mapping[str, str]) -> int:
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_s)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("POST", path, body, dict(headers))
            return connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise DependencyAwayError(
                f"{parts.hostname} does not answer", detail=type(error).__name__
            ) from error
        finally:
            connection.close()


def _possible(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # out of range, it raises
    except ValueError:
        return False
    shown = url.isascii() and url.isprintable() and " " not in url
    return (
        shown
        and parts.scheme in {"http", "https"}
        and bool(parts.hostname)
        and parts.username is None
    )
