"""`declaring`: refuses wrong types of arguments of the functions that a module of views calls."""

from __future__ import annotations

from typing import Final

from foundation.arguments import ArgumentType, typed_arguments
from projections.errors import DeclarationError

_VIEW: Final = ArgumentType("a view", ("MirrorView", "EventsView", "DerivedView"), "orders")
_WINDOWS: Final = ("Tumbling", "Hopping", "Sliding", "Session", "Calendar")

declaring: Final = typed_arguments(
    DeclarationError,
    {
        "Input": _VIEW,
        "Watched": _VIEW,
        "TableRef": ArgumentType("a table of a source", ("TableRef",), 'shop["public.orders"]'),
        "EventsRef": ArgumentType("events of a source", ("EventsRef",), "shop.events(OrderPlaced)"),
        "Window": ArgumentType("a window", _WINDOWS, 'Tumbling("at", "1 hour")'),
    },
)
