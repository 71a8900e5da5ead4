"""Projections: views derived from the log of changes, kept right in every store."""

from __future__ import annotations

from projections.declaration import source
from projections.errors import ProjectionError
from projections.plan import ViewPlan
from projections.registry import Declarations
from projections.view import EventsRef, EventsView, MirrorView, Source, Store, TableRef

__all__ = [
    "Declarations",
    "EventsRef",
    "EventsView",
    "MirrorView",
    "ProjectionError",
    "Source",
    "Store",
    "TableRef",
    "ViewPlan",
    "source",
]
