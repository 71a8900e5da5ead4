"""Headwater: one Postgres is the truth; its log becomes every other view of the data.

Purpose: the words with which a project is declared, and below them the platform, folder by
folder.

| folder | what is there |
|---|---|
| `cli`, `demo` | the commands; the demo on real input |
| `reading` | SQL, views, time travel, replay, dashboard: changes nothing |
| `operations` | versions, erasure, events: changes something on request |
| `platform` | a project assembled: deployment, specs, view catalog, doctor |
| `project` | settings, the module of views, scaffold |
| `runtime` | the local servers, their supervisor, the locked jars |

Entry points: the names below, for modules of views; `headwater.reading.views`,
`headwater.reading.notebook` and `headwater.reading.http_tokens` for applications; the command line.
Invariants: importing this loads no heavy library. `reading` and `operations` do not import each
other.
Tests: tests/unit/headwater, tests/integration/headwater.
"""

from __future__ import annotations

from cdc.column_rule import ColumnRules
from projections.definition.alert import Handler, Message, Recent, Topic, Webhook
from projections.definition.api import alert, dashboard, view
from projections.definition.cache_options import CacheOptions
from projections.definition.dashboard import Bars, Line, Number, Rows
from projections.definition.expectations.expectation import expect
from projections.definition.mirror import source
from projections.definition.operators.lateness import Late
from projections.definition.operators.pattern import Pattern, Step
from projections.definition.operators.windows import Calendar, Hopping, Session, Sliding, Tumbling
from projections.definition.search_options import Keyword, SearchOptions, Stored, Text

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
