"""Headwater: one Postgres is the truth; its log becomes every other view of the data."""

from __future__ import annotations

from cdc.column_rule import ColumnRules
from projections.alert import Handler, Message, Recent, Topic, Webhook
from projections.cache_options import CacheOptions
from projections.dashboard import Bars, Line, Number, Rows
from projections.declaration import source
from projections.declared_alert import alert
from projections.declared_dashboard import dashboard
from projections.event_window import Calendar, Hopping, Session, Sliding, Tumbling
from projections.expectation.expectation import expect
from projections.lateness import Late
from projections.pattern import Pattern, Step
from projections.search.options import Keyword, SearchOptions, Stored, Text
from projections.words import view

__version__ = "0.1.0"

__all__ = [
    "Bars",
    "CacheOptions",
    "Calendar",
    "ColumnRules",
    "Handler",
    "Hopping",
    "Keyword",
    "Late",
    "Line",
    "Message",
    "Number",
    "Pattern",
    "Recent",
    "Rows",
    "SearchOptions",
    "Session",
    "Sliding",
    "Step",
    "Stored",
    "Text",
    "Topic",
    "Tumbling",
    "Webhook",
    "alert",
    "dashboard",
    "expect",
    "source",
    "view",
]
