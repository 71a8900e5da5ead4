"""SQL over the warehouse's views without a JVM.

Delta tables are read by deltalake's DataFusion, which also reads deletion vectors. Every view is
registered under its name, all of them as they stood at one transaction boundary, and the archived
change events under theirs, `changes`; a statement that would change anything is refused before it
runs.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from cdc.errors import EnvelopeError
from cdc.lsn import Lsn
from foundation.errors import EXIT_USAGE
from foundation.suggestion import did_you_mean
from headwater.errors import HeadwaterError
from headwater.project.spelling import CHANGES
from projections.publishing import published_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from deltalake import QueryBuilder

    from projections.publishing.published_content import PublishedVersion, TableVersion
    from projections.publishing.published_versions import Published

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

_WORD = re.compile(r"\w+")
_NOT_FOUND = re.compile(r"table '(?:\w+\.)*(\w+)' not found")


class QueryError(HeadwaterError):
    """The SQL statement cannot be run."""

    code: ClassVar[str] = "HW-Q001"
    exit_code = EXIT_USAGE


class ReadOnlyError(QueryError):
    """The SQL statement would write; views are read-only."""

    code = "HW-Q002"


class NoViewsError(QueryError):
    """There are no views to query yet."""

    code = "HW-Q003"


class NotPublishedError(QueryError):
    """A view's first snapshot is not complete."""

    code = "HW-Q004"


class AsOfError(QueryError):
    """The views cannot be read as of that time, or the time is invalid."""

    code = "HW-Q005"


class ReadTable(NamedTuple):
    """The table of a view, at a version.

    Attributes:
        path: Folder of the table.
        version: Its version; None for the newest, if no job maintains the table.
    """

    path: Path
    version: int | None


def view_tables(tables: Path) -> dict[str, Path]:
    """Returns the folder of each view's Delta table by the view's name, as it is read now."""
    found = sorted(tables.glob("*/_delta_log")) if tables.is_dir() else []
    # a name with a dot is a view's bookkeeping, or one of its versions, but no view
    names = {log.parent.name for log in found if "." not in log.parent.name}
    places: dict[str, str] = {}
    for group in published_versions.sources(tables):
        places |= group.current()
    chosen = {name: tables / places.get(name, name) for name in sorted(names | places.keys())}
    return {name: path for name, path in chosen.items() if (path / "_delta_log").is_dir()}


def run(
    sql: str,
    tables: Path,
    as_of: str | None = None,
    *,
    archive: Path | None = None,
    former: Callable[[str, frozenset[str]], Mapping[str, Path]] | None = None,
) -> pa.Table:
    """Answers one SQL statement over every view, all of them at one transaction boundary.

    Args:
        sql: A SELECT in DataFusion's dialect, close to Postgres'.
        tables: Folder with one Delta table per view.
        as_of: A position in the source's log (`0/1A2B3C`), a time (ISO 8601; without an offset it
            is the local one), or the number of a published version; None for the newest. It says
            nothing of the archive.
        archive: Folder of the archived change events; they are the table `changes`.
        former: Makes the views that a statement's words name as they were then, where no published
            version is kept any more; returns the folders of their tables. See `FormerViews`.

    Raises:
        NoViewsError: No view has been built yet.
        NotPublishedError: A view has no version yet that is whole.
        AsOfError: It is not one of these, or lies before what is kept.
        ReadOnlyError: The statement is not a query.
        QueryError: The statement is wrong; the nearest view is named if one is not found.
    """
    from deltalake import DeltaTable  # noqa: PLC0415  # a second that no other command waits for

    views = _view_tables(tables)
    _require_query(sql)
    try:
        chosen = readable(tables, views, as_of, words(sql))
    except AsOfError:
        if former is None or as_of is None or moment(as_of) is None:
            raise
        views = dict(former(as_of, words(sql)))
        chosen = {name: ReadTable(path, None) for name, path in views.items()}
    engine = _engine(chosen)
    if archive is not None and CHANGES not in views and DeltaTable.is_deltatable(str(archive)):
        engine = engine.register(CHANGES, DeltaTable(archive))
    return _answered(engine, sql, views, chosen)


def run_all(
    statements: Sequence[str], views: Mapping[str, ReadTable]
) -> list[pa.Table | HeadwaterError]:
    """Runs several statements over the same tables.

    Args:
        statements: As `run` takes them.
        views: Table of each view.

    Returns:
        The result of each statement, or its error.
    """
    named = frozenset().union(*map(words, statements))
    engine = _engine({name: table for name, table in views.items() if name.lower() in named})
    found: list[pa.Table | HeadwaterError] = []
    for sql in statements:
        try:
            _require_query(sql)
            found.append(_answered(engine, sql, {}, views))
        except QueryError as error:
            found.append(error)
    return found


def _view_tables(tables: Path) -> dict[str, Path]:
    views = view_tables(tables)
    if not views:
        hint = "headwater up (or headwater demo) builds them"
        raise NoViewsError("no view has a table yet", detail=str(tables), hint=hint)
    return views


def _require_query(sql: str) -> None:
    if not _QUERY.match(sql):
        raise ReadOnlyError("only queries are allowed", hint=_READ_ONLY_HINT)


def _engine(chosen: Mapping[str, ReadTable]) -> QueryBuilder:
    from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415

    engine = QueryBuilder()
    for name, table in chosen.items():
        engine = engine.register(name, DeltaTable(table.path, version=table.version))
    return engine


def _answered(
    engine: QueryBuilder, sql: str, views: Mapping[str, Path], versions: Iterable[str]
) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    from projections.stores.delta.table_query import answer, reason  # noqa: PLC0415

    try:
        plan = answer(engine, f"EXPLAIN {sql}").read_all()
        if _CHANGES.search(str(plan["plan"][0])):
            raise ReadOnlyError("only queries are allowed", hint=_READ_ONLY_HINT)
        return answer(engine, sql).read_all()
    except DeltaError as error:
        raise _explained(reason(error), views, versions) from None
    except (OSError, pa.ArrowException) as error:
        raise QueryError("the statement cannot be run", detail=reason(error)) from None


def words(sql: str) -> frozenset[str]:
    """Returns the words of a statement in small letters; its views are among them."""
    return frozenset(_WORD.findall(sql.lower()))


def readable(
    tables: Path,
    views: Mapping[str, Path],
    as_of: str | None = None,
    words: frozenset[str] | None = None,
) -> dict[str, ReadTable]:
    """Returns the table of each view, all at one published version.

    Args:
        tables: Folder of the tables.
        views: Folder of each view's table; see `view_tables`.
        as_of: As in `run`.
        words: Words of the query. Derived views not among them are not waited for, and are left out
            if they are behind. With `as_of`, sources without a view among them are left out. None
            for all views.

    Returns:
        The tables by view; unpublished ones are left out. With `as_of`, a view has its physical
        name of that time.

    Raises:
        AsOfError: The value is unknown, or before the oldest version.
    """
    groups = published_versions.sources(tables)
    if not groups:
        if as_of is not None:
            raise AsOfError("nothing is published yet", hint="headwater view status")
        return {name: ReadTable(path, None) for name, path in views.items()}
    if as_of is not None:
        groups = _sources_as_of(groups, as_of, words)
    found: dict[str, ReadTable] = {}
    for group in groups:
        then = _newest(group, words) if as_of is None else _as_of(group, as_of)
        for name, (place, table) in then.items():
            if name not in views:
                continue
            if (tables / place / "_delta_log").is_dir():
                found[name] = ReadTable(tables / place, table.version)
            elif words is None or name in words:
                raise AsOfError(
                    f"view {name} as of that time can no longer be read",
                    detail=f"its table then, {place}, was removed",
                )
    return found


def boundaries_as_of(
    tables: Path, as_of: str, words: frozenset[str] | None = None
) -> dict[str, PublishedVersion]:
    """Returns the version that `readable` reads as of a moment, by source.

    As of a time, that is what readers saw then: transactions that had committed, and that were not
    applied yet, are not in it.

    Args:
        tables: Folder of the tables.
        as_of: As in `run`.
        words: As in `readable`.

    Raises:
        AsOfError: The value is unknown, or before the oldest version.
    """
    groups = _sources_as_of(published_versions.sources(tables), as_of, words)
    return {group.folder.name: _version_as_of(group, as_of) for group in groups}


def _sources_as_of(
    groups: list[Published], as_of: str, words: frozenset[str] | None
) -> list[Published]:
    """The sources that are read as of then: a position or a number means something in one only.

    Raises:
        AsOfError: The query names views of several sources.
    """
    if len(groups) <= 1:
        return groups
    if words is not None:
        groups = [group for group in groups if words & _names(group)] or groups
    if len(groups) > 1 and not isinstance(moment(as_of), datetime):
        raise AsOfError(
            "a position or a version is of one source, and the views are of several",
            detail=", ".join(group.folder.name for group in groups),
            hint="use a time: --as-of 2026-11-21T14:05:00Z",
        )
    return groups


def _names(group: Published) -> set[str]:
    newest = group.newest()
    views = set() if newest is None else set(newest.views)
    return {name.partition(".")[0].lower() for name in (*views, *group.current())}


def _newest(
    group: Published, words: frozenset[str] | None
) -> Mapping[str, tuple[str, TableVersion]]:
    """The tables at the newest boundary where all are that a query has words of."""
    places = group.current()
    newest = group.newest()
    if newest is None or newest.complete:
        return {} if newest is None else newest.by_view(places)
    found = newest.by_view(places)
    behind = {name for name, (_, table) in found.items() if table.made_from}
    if words is not None and not behind & words:
        return {name: table for name, table in found.items() if name not in behind}
    latest = group.latest()
    return {} if latest is None else latest.by_view(places)


def _as_of(group: Published, as_of: str) -> Mapping[str, tuple[str, TableVersion]]:
    version, (_, then_us) = _version_as_of(group, as_of), _reader_of(as_of)
    places = group.current(version.published_at_us if then_us is None else then_us)
    return version.by_view(places)


def _version_as_of(group: Published, as_of: str) -> PublishedVersion:
    reached, _ = _reader_of(as_of)
    versions = group.all()
    found = [version for version in versions if reached(version)]
    if not found:
        raise AsOfError(
            "the views as of that time can no longer be read",
            detail=f"requested {as_of}; {len(versions)} versions are kept",
            hint=f"versions are kept for {published_versions.KEPT_HOURS} h:"
            " headwater view versions; a history (scd=2) keeps every state",
        )
    return found[-1]


def moment(as_of: str) -> Lsn | datetime | None:
    """Returns the position or the time that is asked for; None of a version's number.

    Raises:
        AsOfError: It is none of these.
    """
    text = as_of.strip()
    if text.isdecimal():
        return None
    try:
        return Lsn.parse(text) if "/" in text else datetime.fromisoformat(text).astimezone()
    except (EnvelopeError, ValueError) as error:
        raise _unknown(as_of) from error


def _reader_of(as_of: str) -> tuple[Callable[[PublishedVersion], bool], int | None]:
    """Returns a filter for published versions up to a moment, and the time if it is one."""
    found = moment(as_of)
    if found is None:
        number = int(as_of)
        return lambda version: version.number == number, None
    if isinstance(found, Lsn):
        return lambda version: version.applied_through <= found, None
    then_us = round(found.timestamp() * 1_000_000)
    return lambda version: version.published_at_us <= then_us, then_us


def _unknown(as_of: str) -> AsOfError:
    return AsOfError(
        "the text is not a position, time or version",
        detail=as_of[:80],
        hint="use a position (0/1A2B3C), a time (2026-11-21T14:05:00Z), or the number of a "
        "version: headwater view versions",
    )


def _explained(text: str, views: Mapping[str, Path], versions: Iterable[str]) -> QueryError:
    missing = _NOT_FOUND.search(text)
    if missing is None:
        return QueryError("the statement cannot be run", detail=text)
    if missing[1] in views:
        hint = "headwater source status says how far its table has been read"
        return NotPublishedError(f"view {missing[1]} is still being built", hint=hint)
    hint = did_you_mean(missing[1], versions, "views: " + ", ".join(versions))
    return QueryError(f"no view is named {missing[1]}", hint=hint)
