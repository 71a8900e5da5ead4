"""Position tokens in HTTP headers: the public name of `headwater.reading.http_tokens`."""

from __future__ import annotations

from headwater.reading.http_tokens import HEADER, AsgiPositions, WsgiPositions, at_least, promise

__all__ = ["HEADER", "AsgiPositions", "WsgiPositions", "at_least", "promise"]
