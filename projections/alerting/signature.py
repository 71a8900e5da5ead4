"""Signs webhooks as Standard Webhooks (standardwebhooks.com) specifies.

The signature covers the message's id, the time of sending and the body, so that a message cannot be
replayed later, or as another one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from typing import TYPE_CHECKING, Final

from projections.errors import AlertSignatureError

if TYPE_CHECKING:
    from collections.abc import Mapping

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE_S: Final = 300
"""Greatest clock difference, and longest delivery."""

_PREFIX: Final = "whsec_"
_VERSION: Final = "v1"


def signed(message_id: str, body: bytes, secret: str, at_s: float | None = None) -> dict[str, str]:
    """Returns the headers that sign a body.

    Args:
        message_id: The message's id, the same at every attempt.
        body: The body.
        secret: The secret: plain, or `whsec_` and base64.
        at_s: Time of sending, seconds since 1970; None for now.

    Raises:
        AlertSignatureError: The secret is not base64.
    """
    moment = str(int(time.time() if at_s is None else at_s))
    mark = _mark(message_id, moment, body, secret)
    return {ID: message_id, TIMESTAMP: moment, SIGNATURE: f"{_VERSION},{mark}"}


def verify(
    headers: Mapping[str, str], body: bytes, secret: str, *, tolerance_s: int = TOLERANCE_S
) -> str:
    """Verifies that a message was signed with the secret; returns its id.

    A receiver may get a message twice, with the same id.

    Args:
        headers: The request's headers, in any case.
        body: The request's body, unchanged.
        secret: The secret.
        tolerance_s: Greatest age, and greatest time ahead, seconds.

    Raises:
        AlertSignatureError: The signature is missing, invalid or too old.
    """
    by_name = {name.lower(): value for name, value in headers.items()}
    message_id, moment = by_name.get(ID, ""), by_name.get(TIMESTAMP, "")
    if not message_id or not moment.isascii() or not moment.isdigit():
        raise AlertSignatureError("a message is not signed")
    if abs(time.time() - int(moment)) > tolerance_s:
        raise AlertSignatureError("a message's timestamp is too old, or its clock is wrong")
    wanted = _mark(message_id, moment, body, secret).encode()
    # there may be several during a change of the secret
    for each in by_name.get(SIGNATURE, "").split():
        version, _, mark = each.partition(",")
        if version == _VERSION and hmac.compare_digest(mark.encode(), wanted):
            return message_id
    raise AlertSignatureError("a message has an invalid signature")


def _mark(message_id: str, moment: str, body: bytes, secret: str) -> str:
    content = b".".join([message_id.encode(), moment.encode(), body])
    return base64.b64encode(hmac.digest(_key(secret), content, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise AlertSignatureError(
            "a secret that begins with whsec_ must continue in base64"
        ) from None
