"""Answers: what a dashboard's panels show at one published version."""

from __future__ import annotations

import logging
import threading
import zlib
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson

from foundation.json_numbers import with_number_texts
from headwater.errors import HeadwaterError
from headwater.reading import sql as reading_sql
from headwater.reading.sql import ReadTable
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from projections.definition.dashboard import Dashboard, Panel
    from projections.publishing.published_content import PublishedVersion

_LOGGER = logging.getLogger(__name__)
ROWS_MAX: Final = 1_000
"""Rows of one panel that are sent; how many there are is said beside them."""

_INTEGER_MAX: Final = 2**53 - 1
"""Greatest number whose whole digits a browser keeps."""


class PanelError(HeadwaterError):
    """A panel cannot be shown; the others are shown."""

    code = "HW-U005"


@dataclass(frozen=True, slots=True)
class Answer:
    """The data of a dashboard.

    Attributes:
        etag: Unique tag of this state.
        body: JSON: the title, the boundary, and each panel's result or its error.
    """

    etag: str
    body: bytes


@dataclass(slots=True)
class Answers:
    """Runs a dashboard's queries, once for each published version, however many readers ask.

    Attributes:
        dashboard: The dashboard.
        tables: Folder of the views' tables.
        source: Name of the source.
        beside: Names of other sources, each shown at its own boundary.
    """

    dashboard: Dashboard
    tables: Path
    source: str
    beside: tuple[str, ...] = ()
    _last: Answer | None = None
    _answering: threading.Lock = field(default_factory=threading.Lock)

    def newest(self) -> Answer:
        """Returns the answer as of the newest boundary at which all views are complete."""
        with self._answering:
            groups = [Published(self.tables, name) for name in (self.source, *self.beside)]
            found = [(group.current(), group.latest()) for group in groups]
            places = sorted(place for of_group, _ in found for place in of_group.items())
            called = "-".join(_called(version) for _, version in found)
            # a switch shows another table at the same boundary
            etag = f'"{called}-{zlib.crc32(orjson.dumps(places)):x}"'
            if self._last is None or self._last.etag != etag:
                published = [(at, version) for at, version in found if version is not None]
                self._last = Answer(etag, self._answered(published))
            return self._last

    def _answered(self, found: Sequence[tuple[Mapping[str, str], PublishedVersion]]) -> bytes:
        panels = self.dashboard.panels
        if not found:
            waiting = {"error": {"message": "no view has been built yet", "hint": "headwater up"}}
            shown = [_said(panel) | waiting for panel in panels]
            return orjson.dumps({"title": self.dashboard.title, "panels": shown})
        views = {
            name: ReadTable(self.tables / place, table.version)
            for places, version in found
            for name, (place, table) in version.by_view(places).items()
        }
        answers = _asked([panel.sql for panel in panels], views)
        versions = [version for _, version in found]
        oldest_us = min(version.published_at_us for version in versions)
        at = datetime.fromtimestamp(oldest_us / 1_000_000, UTC)
        return orjson.dumps(
            {
                "title": self.dashboard.title,
                "version": max(version.number for version in versions),
                "applied_through": ", ".join(str(v.applied_through) for v in versions),
                "published_at": at.isoformat(timespec="milliseconds"),
                "panels": [
                    _said(panel) | _shown(answer)
                    for panel, answer in zip(panels, answers, strict=True)
                ],
            }
        )


def _asked(
    statements: Sequence[str], views: Mapping[str, ReadTable]
) -> list[pa.Table | HeadwaterError]:
    """The answers; where one table cannot be opened, to those panels that do not read it."""
    try:
        return reading_sql.run_all(statements, views)
    except Exception as error:  # noqa: BLE001  # whatever a table does, others are shown
        if len(statements) == 1:
            return [_unshown(error)]
    return [answer for sql in statements for answer in _asked([sql], views)]


def _unshown(error: Exception) -> PanelError:
    _LOGGER.warning("a panel cannot be shown: %s", type(error).__name__)
    return PanelError(
        "a panel cannot be shown",
        detail=type(error).__name__,
        hint="a value cannot be serialised (such as a time beyond year 9999), or a table "
        "cannot be read: run its SELECT with headwater query",
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
    try:
        rows = [list(row.values()) for row in answer.slice(0, ROWS_MAX).to_pylist()]
        written = orjson.dumps(with_number_texts(rows, _INTEGER_MAX), default=_plain)
    except Exception as error:  # noqa: BLE001  # whatever a value is, other panels are shown
        return _shown(_unshown(error))
    return {
        "columns": answer.column_names,
        "rows": orjson.Fragment(written),
        "count": answer.num_rows,
    }


def _plain(value: Any) -> Any:
    """A value as JSON has it: amounts as numbers, since they are drawn."""
    if isinstance(value, Decimal):
        return float(value) if abs(value) <= _INTEGER_MAX else format(value, "f")
    return value.hex() if isinstance(value, bytes) else str(value)
