"""SQL over the warehouse's views without a JVM.

Delta tables are read by deltalake's DataFusion, which also reads deletion vectors. Every view is
registered under its name, all of them as they stood at one transaction boundary, and the archived
change events under theirs, `changes`; a statement that would change anything is refused before it
runs.
"""

from __future__ import annotations

import difflib
import re
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from cdc.errors import EnvelopeError
from cdc.lsn import Lsn
from headwater.errors import HeadwaterError
from projections import published

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from projections.published import Published, PublishedVersion, TableVersion

# names of DataFusion's plan nodes that do more than read
_CHANGES = re.compile(
    r"^\s*(Dml|CopyTo|Drop\w*|Create\w*|SetVariable|Transaction\w*|Prepare|Execute|Deallocate)\b",
    re.MULTILINE,
)
# EXPLAIN would run what follows ANALYZE, so a statement must start as a query does
_QUERY = re.compile(
    r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:select|with|values|table|describe)\b",
    re.IGNORECASE | re.DOTALL,
)
_READ_ONLY_HINT = "views are derived: change the source and they follow"
CHANGES = "changes"
"""Name under which the archive is read, unless a view has it."""

_WORD = re.compile(r"\w+")
_NOT_FOUND = re.compile(r"table '(?:\w+\.)*(\w+)' not found")


class QueryError(HeadwaterError):
    """The statement cannot be answered."""

    code: ClassVar[str] = "HW-Q001"
    exit_code: ClassVar[int] = 2


class ReadOnlyError(QueryError):
    """The statement would change something; views change only by the log."""

    code = "HW-Q002"


class NoViewsError(QueryError):
    """There is nothing to query yet."""

    code = "HW-Q003"


class NotPublishedError(QueryError):
    """A view's rows are still being read for the first time."""

    code = "HW-Q004"


class AsOfError(QueryError):
    """What the views were like then cannot be read, or was not asked for in a way we know."""

    code = "HW-Q005"


def view_tables(tables: Path) -> dict[str, Path]:
    """Returns the folder of each view's Delta table by the view's name."""
    found = sorted(tables.glob("*/_delta_log")) if tables.is_dir() else []
    # a name with a dot belongs to a view's bookkeeping, not to a view
    return {log.parent.name: log.parent for log in found if "." not in log.parent.name}


def run(
    sql: str, tables: Path, as_of: str | None = None, *, archive: Path | None = None
) -> pa.Table:
    """Answers one SQL statement over every view, all of them at one transaction boundary.

    Args:
        sql: A SELECT in DataFusion's dialect, close to Postgres'.
        tables: Folder with one Delta table per view.
        as_of: A position in the source's log (`0/1A2B3C`), a time (ISO 8601; without an offset it
            is the local one), or the number of a published version; None for the newest. It says
            nothing of the archive.
        archive: Folder of the archived change events; they are the table `changes`.

    Raises:
        NoViewsError: No view has been built yet.
        NotPublishedError: A view has no version yet that is whole.
        AsOfError: It is not one of these, or lies before what is kept.
        ReadOnlyError: The statement is not a query.
        QueryError: The statement is wrong; the nearest view is named if one is not found.
    """
    import pyarrow as pa  # noqa: PLC0415  # a second of import that no other command waits for
    from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    views = view_tables(tables)
    if not views:
        hint = "headwater up (or headwater demo) builds them"
        raise NoViewsError("no view has a table yet", detail=str(tables), hint=hint)
    if not _QUERY.match(sql):
        raise ReadOnlyError("only queries are answered", hint=_READ_ONLY_HINT)
    versions = readable(tables, views, as_of, words(sql))
    engine = QueryBuilder()
    for name, version in versions.items():
        engine = engine.register(name, DeltaTable(views[name], version=version))
    if archive is not None and CHANGES not in views and DeltaTable.is_deltatable(str(archive)):
        engine = engine.register(CHANGES, DeltaTable(archive))
    try:
        plan = pa.table(engine.execute(f"EXPLAIN {sql}").read_all())
        if _CHANGES.search(str(plan["plan"][0])):
            raise ReadOnlyError("only queries are answered", hint=_READ_ONLY_HINT)
        return pa.table(engine.execute(sql).read_all())
    except DeltaError as error:
        raise _explained(str(error), views, versions) from None


def words(sql: str) -> frozenset[str]:
    """Returns the words of a statement in small letters; its views are among them."""
    return frozenset(_WORD.findall(sql.lower()))


def readable(
    tables: Path,
    views: Mapping[str, Path],
    as_of: str | None = None,
    words: frozenset[str] | None = None,
) -> dict[str, int | None]:
    """Returns the version of each view's table that is read together with the others.

    Args:
        tables: Folder of the tables.
        views: Folder of each view's table; see `view_tables`.
        as_of: As `run` takes it.
        words: Words of the query. Views made from others that are not among them are not waited
            for, and are left out if they are behind. None for all views.

    Returns:
        None of a table that is read as it is, because no job of ours keeps it; a view that has no
        version yet is left out.

    Raises:
        AsOfError: What is asked for is nothing we know, or lies before what is kept.
    """
    groups = published.sources(tables)
    if not groups:
        if as_of is not None:
            raise AsOfError("nothing was published yet", hint="headwater view status")
        return dict.fromkeys(views)  # tables that no job of ours keeps
    found: dict[str, int | None] = {}
    for group in groups:
        then = _newest(group, words) if as_of is None else _as_of(group.all(), as_of).views
        found |= {name: table.version for name, table in then.items() if name in views}
    return found


def _newest(group: Published, words: frozenset[str] | None) -> Mapping[str, TableVersion]:
    """The tables at the newest boundary where all are that a query has words of."""
    newest = group.newest()
    if newest is None or newest.complete:
        return {} if newest is None else newest.views
    behind = {name for name, table in newest.views.items() if table.made_from}
    if words is not None and not behind & words:
        return {name: table for name, table in newest.views.items() if name not in behind}
    latest = group.latest()
    return {} if latest is None else latest.views


def _as_of(versions: Sequence[PublishedVersion], as_of: str) -> PublishedVersion:
    reached = _reader_of(as_of)
    found = [version for version in versions if reached(version)]
    if not found:
        raise AsOfError(
            "the views as of then cannot be read any more",
            detail=f"asked for {as_of}; {len(versions)} versions are kept",
            hint=f"versions are kept for {published.KEPT_HOURS} h: headwater view versions; "
            "a history (scd=2) keeps every state",
        )
    return found[-1]


def _reader_of(as_of: str) -> Callable[[PublishedVersion], bool]:
    """Tells a published version that was there by then."""
    text = as_of.strip()
    if text.isdecimal():
        number = int(text)
        return lambda version: version.number == number
    if "/" in text:
        try:
            position = Lsn.parse(text)
        except EnvelopeError as error:
            raise _unknown(as_of) from error
        return lambda version: version.applied_through <= position
    try:
        then = datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise _unknown(as_of) from error
    then_us = round(then.timestamp() * 1_000_000)
    return lambda version: version.published_at_us <= then_us


def _unknown(as_of: str) -> AsOfError:
    return AsOfError(
        "this is no position, time or version",
        detail=as_of[:80],
        hint="a position (0/1A2B3C), a time (2026-11-21T14:05:00Z), or the number of a version:"
        " headwater view versions",
    )


def _explained(text: str, views: Mapping[str, Path], versions: Mapping[str, object]) -> QueryError:
    missing = _NOT_FOUND.search(text)
    if missing is None:
        return QueryError("the statement cannot be answered", detail=text)
    if missing[1] in views:
        hint = "headwater source status says how far its table has been read"
        return NotPublishedError(f"view {missing[1]} is still being built", hint=hint)
    near = difflib.get_close_matches(missing[1], versions, n=1)
    hint = f"did you mean {near[0]}?" if near else "views: " + ", ".join(versions)
    return QueryError(f"no view is named {missing[1]}", hint=hint)
