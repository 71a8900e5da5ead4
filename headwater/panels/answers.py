"""Answers: what a dashboard's panels show at one published version."""

from __future__ import annotations

import threading
import zlib
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater import query
from headwater.errors import HeadwaterError
from headwater.query import ReadTable
from projections.published import Published

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa

    from projections.dashboard import Dashboard, Panel
    from projections.published import PublishedVersion

ROWS_MAX: Final = 1_000
"""Rows of one panel that are sent; how many there are is said beside them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a dashboard shows.

    Attributes:
        etag: Tells it from any other.
        body: JSON: the title, the boundary, and each panel's answer or why it has none.
    """

    etag: str
    body: bytes


@dataclass(slots=True)
class Answers:
    """Answers a dashboard's panels, once for each published version however many ask.

    Attributes:
        dashboard: What is asked.
        tables: Folder of the views' tables.
        source: Name of the source.
    """

    dashboard: Dashboard
    tables: Path
    source: str
    _last: Answer | None = None
    _answering: threading.Lock = field(default_factory=threading.Lock)

    def newest(self) -> Answer:
        """Returns the answer as of the newest boundary at which all views are complete."""
        with self._answering:
            published = Published(self.tables, self.source)
            places, version = published.current(), published.latest()
            # a switch shows another table at the same boundary
            etag = f'"{_called(version)}-{zlib.crc32(orjson.dumps(sorted(places.items()))):x}"'
            if self._last is None or self._last.etag != etag:
                self._last = Answer(etag, self._answered(version, places))
            return self._last

    def _answered(self, version: PublishedVersion | None, places: Mapping[str, str]) -> bytes:
        panels = self.dashboard.panels
        if version is None:
            waiting = {"error": {"message": "no view has been built yet", "hint": "headwater up"}}
            shown = [_said(panel) | waiting for panel in panels]
            return orjson.dumps({"title": self.dashboard.title, "panels": shown})
        views = {
            name: ReadTable(self.tables / place, table.version)
            for name, (place, table) in version.by_view(places).items()
        }
        found = query.run_all([panel.sql for panel in panels], views)
        at = datetime.fromtimestamp(version.published_at_us / 1_000_000, UTC)
        return orjson.dumps(
            {
                "title": self.dashboard.title,
                "version": version.number,
                "applied_through": str(version.applied_through),
                "published_at": at.isoformat(timespec="milliseconds"),
                "panels": [
                    _said(panel) | _shown(answer)
                    for panel, answer in zip(panels, found, strict=True)
                ],
            },
            default=_plain,
        )


def _called(version: PublishedVersion | None) -> str:
    return "0" if version is None else f"{version.epoch}-{version.number}"


def _said(panel: Panel) -> dict[str, Any]:
    said = asdict(panel)
    del said["sql"]
    return {"kind": panel.kind, **said}


def _shown(answer: pa.Table | HeadwaterError) -> dict[str, Any]:
    if isinstance(answer, HeadwaterError):
        error = {"code": answer.code, "message": answer.message, "hint": answer.hint}
        return {"error": error}
    rows = answer.slice(0, ROWS_MAX)
    return {
        "columns": answer.column_names,
        "rows": [list(row.values()) for row in rows.to_pylist()],
        "count": answer.num_rows,
    }


def _plain(value: Any) -> Any:
    """A value as JSON has it: amounts as numbers, since they are drawn."""
    if isinstance(value, Decimal):
        return float(value)
    return value.hex() if isinstance(value, bytes) else str(value)
