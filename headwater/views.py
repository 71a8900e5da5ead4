"""Views as applications read them: the public name of `headwater.reading.views`."""

from __future__ import annotations

from headwater.reading.views import BehindError, PositionToken, ReadableView, Views

__all__ = ["BehindError", "PositionToken", "ReadableView", "Views"]
