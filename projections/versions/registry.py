"""The registry of versions: one of a view is active, others are kept beside it.

A view whose definition changes gets another version: a separate view in every store under the
physical name `<view>.v<number>`. The first version's physical name is the view's own name. The job
maintains every version that is not dropped, by its own definition, so readers can be moved to
another one and back. The source database records the versions, next to the views' positions, as the
single source of truth for the job, commands and readers.

A physical name is never used again, not even after its version was dropped.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg
from psycopg.types.json import Jsonb

from foundation.advisory_lock import AdvisoryLock
from projections.common.fault import Fault
from projections.definition import codec
from projections.definition.diff import DefinitionChange, DefinitionChangeKind, difference
from projections.errors import VersionBusyError
from projections.planning.binding import bind
from projections.versions.version import (
    KEPT,
    FillProgress,
    VersionState,
    ViewVersion,
    replayed_of_json,
    replayed_to_json,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from cdc.column_rule import Hiding
    from cdc.table import TableName
    from projections.common.offsets import Offsets
    from projections.definition.views import AnyView, View
    from projections.planning.binding import Binding

    Connection = psycopg.Connection[Any]

BUSY_WAIT_S: Final = 5.0
"""How long a command waits for another one on the same view, seconds: longer than a listing, drop
or cutover takes, but shorter than a rebuild."""

_COLUMNS: Final = """
view, version, place, state, definition, reasons, bounds, replayed, fault, switching, made_at,
changed_at"""
_READY: Final = "SELECT to_regclass('headwater.view_versions') IS NOT NULL"
_READ: Final = f"""
SELECT {_COLUMNS} FROM headwater.view_versions WHERE source = %s ORDER BY view, version
"""  # noqa: S608  # the columns are a constant
_MOVING: Final = f"""
SELECT {_COLUMNS} FROM headwater.view_versions
 WHERE source = %s AND (switching OR state IN ('joining', 'dropped')) ORDER BY view, version
"""  # noqa: S608
_ADD: Final = """
INSERT INTO headwater.view_versions (source, view, version, place, state, definition, reasons,
                                     bounds)
SELECT %(source)s, %(view)s, number, CASE number WHEN 1 THEN %(view)s
                                      ELSE %(view)s || '.v' || number END,
       %(state)s, %(definition)s, %(reasons)s, %(bounds)s
  FROM (SELECT coalesce(max(version), 0) + 1 AS number FROM headwater.view_versions
         WHERE source = %(source)s AND view = %(view)s) AS next
RETURNING version
"""
# now(): both versions of a cutover change in one transaction, and so at one time
_MOVE: Final = """
UPDATE headwater.view_versions
   SET state = %(state)s, fault = NULL, switching = false,
       changed_at = CASE state WHEN %(state)s THEN changed_at ELSE now() END
 WHERE source = %(source)s AND place = %(place)s AND state = ANY (%(before)s)
"""
_DEFINE: Final = """
UPDATE headwater.view_versions SET definition = %s WHERE source = %s AND place = %s
"""
_REPLAYED: Final = """
UPDATE headwater.view_versions SET replayed = %s WHERE source = %s AND place = %s
"""
_FAULT: Final = """
UPDATE headwater.view_versions
   SET fault = %s, state = 'building', changed_at = clock_timestamp()
 WHERE source = %s AND place = %s AND state IN ('building', 'joining')
"""
_SWITCHING: Final = """
UPDATE headwater.view_versions SET switching = place = %(place)s
 WHERE source = %(source)s AND switching <> (place = %(place)s)
   AND view = (SELECT view FROM headwater.view_versions
                WHERE source = %(source)s AND place = %(place)s)
"""
_MARK: Final = """
SELECT place, md5(definition::text), state = 'joining' FROM headwater.view_versions
 WHERE source = %s AND view = ANY (%s) AND state IN ('joining', 'held', 'current', 'former')
"""
_DROPPED: Final = """
SELECT place FROM headwater.view_versions WHERE source = %s AND state = 'dropped'
"""
_FORGET: Final = (
    "DELETE FROM headwater.view_positions WHERE source = %(source)s AND view = %(place)s",
    "DELETE FROM headwater.view_shapes WHERE source = %(source)s AND view = %(place)s",
    "DELETE FROM headwater.quarantine WHERE source = %(source)s AND view = %(place)s",
    "DELETE FROM headwater.sweeps WHERE view = %(place)s",
    "DELETE FROM headwater.view_verifications WHERE source = %(source)s AND view = %(place)s",
    "DELETE FROM headwater.schema_outcomes WHERE view = %(place)s",
)
_LOCK: Final = AdvisoryLock.named("headwater.view_versions", parts=2)
_GONE: Final = "SELECT to_regclass(quote_ident(%s) || '.' || quote_ident(%s)) IS NULL"


def ready(connection: Connection) -> bool:
    """Returns whether the tables of versions exist: before the first capture they do not."""
    row = connection.execute(_READY).fetchone()
    return bool(row and row[0])


def read(connection: Connection, source: str) -> list[ViewVersion]:
    """Returns all versions ever created, by view and number."""
    if not ready(connection):
        return []
    return [_version(*row) for row in connection.execute(_READ, (source,)).fetchall()]


def moving(connection: Connection, source: str) -> list[ViewVersion]:
    """Returns the versions that are joining, being switched to, or dropped, by view and number."""
    if not ready(connection):
        return []
    return [_version(*row) for row in connection.execute(_MOVING, (source,)).fetchall()]


def of_view(connection: Connection, source: str, view: str) -> list[ViewVersion]:
    """Returns the versions of a view that are not dropped, by number."""
    return [
        version
        for version in read(connection, source)
        if version.view == view and version.state is not VersionState.DROPPED
    ]


def dropped(connection: Connection, source: str) -> frozenset[str]:
    """Returns the physical names of dropped versions."""
    if not ready(connection):
        return frozenset()
    return frozenset(
        physical_name for (physical_name,) in connection.execute(_DROPPED, (source,)).fetchall()
    )


def register(connection: Connection, source: str, declared: Iterable[AnyView]) -> dict[str, str]:
    """Records the definitions with which a job starts.

    A view without a version gets its first one. A view that was retired and is declared again gets
    another version, which becomes active as soon as the job has it. Changes of a definition that
    the view can follow in place are adopted; after any other change the view continues by its
    recorded definition.

    Returns:
        The difference for each view whose definition is not the declared one.
    """
    if not ready(connection):
        return {}
    current = _current(read(connection, source))
    differing = {}
    for view in declared:
        known = current.get(view.name)
        if known is None:
            with connection.transaction():
                if add(connection, source, view, VersionState.CURRENT) > 1:
                    physical_name = _current(read(connection, source))[view.name].physical_name
                    note_switching(connection, source, physical_name)
            continue
        change, document = changed(connection, known, view), codec.encoded(view)
        if change.kind is DefinitionChangeKind.REBUILD:
            differing[view.name] = "; ".join(change.differences)
        elif document != known.definition:
            connection.execute(_DEFINE, (Jsonb(document), source, known.physical_name))
    return differing


def changed(connection: Connection, known: ViewVersion, view: AnyView) -> DefinitionChange:
    """Returns how a declared view differs from the definition of a version."""

    def gone(table: TableName) -> bool:
        row = connection.execute(_GONE, (table.schema, table.name)).fetchone()
        return bool(row and row[0])

    return difference(codec.decoded(known.definition), view, gone=gone)


@dataclass(frozen=True, slots=True)
class MaintainedView:
    """A version of a view that the job maintains.

    Attributes:
        view: The view, under the version's physical name.
        active: Whether it is the active version.
        joining: Offset after the last record of each partition that it was filled with; None once
            the job's queries have adopted it.
    """

    view: View
    active: bool = True
    joining: Offsets | None = None


def maintained(
    connection: Connection, source: str, declared: Iterable[View]
) -> list[MaintainedView]:
    """Returns the versions that the job maintains of each declared view, by physical name.

    Inactive versions precede the active one. If a batch writes them one after the other, a reader
    moved meanwhile therefore never sees an earlier state. A view without versions is maintained as
    declared.
    """
    by_view: dict[str, list[ViewVersion]] = {}
    for version in read(connection, source):
        by_view.setdefault(version.view, []).append(version)
    views: list[MaintainedView] = []
    for view in declared:
        if view.name not in by_view:
            views.append(MaintainedView(view))
        versions = [each for each in by_view.get(view.name, ()) if each.state in KEPT]
        versions.sort(key=lambda each: each.state is VersionState.CURRENT)
        views += [_maintained(connection, version, view) for version in versions]
    return views


def _maintained(connection: Connection, version: ViewVersion, view: View) -> MaintainedView:
    made_for = cast("View", version.declared([view]))
    if version.state is VersionState.CURRENT:
        follows = changed(connection, version, view).kind is not DefinitionChangeKind.REBUILD
        return MaintainedView(replace(view, name=version.physical_name) if follows else made_for)
    joining = version.state is VersionState.JOINING and version.replayed is not None
    ends = version.replayed.ends if joining and version.replayed is not None else None
    return MaintainedView(made_for, active=False, joining=ends)


def bind_maintained(
    connection: Connection,
    source: str,
    declared: Iterable[View],
    *,
    decides: bool = False,
    hiding: Hiding,
) -> Binding:
    """Binds every maintained version of the declared views to its table as it is now.

    Args:
        connection: To the source, in autocommit.
        source: Its name.
        declared: The declared views.
        decides: See `projections.planning.binding.bind`.
        hiding: Rules for excluded, hashed and masked columns.

    Raises:
        PlanError: A version does not fit its table, and never did.
    """
    views = {each.view.name: each for each in maintained(connection, source, declared)}
    bound = bind(
        connection, source, [each.view for each in views.values()], decides=decides, hiding=hiding
    )
    return replace(
        bound,
        plans=tuple(replace(plan, active=views[plan.name].active) for plan in bound.plans),
        joining={name: each.joining for name, each in views.items() if each.joining is not None},
    )


def made_for(versions: Iterable[ViewVersion], view: AnyView) -> ViewVersion | None:
    """Returns the newest version of a view with a given definition that is not dropped."""
    wanted = codec.digest(view)
    versions_made = [
        each
        for each in versions
        if each.view == view.name and each.state in KEPT and codec.digest(each.declared()) == wanted
    ]
    return versions_made[-1] if versions_made else None


def defined(version: ViewVersion) -> AnyView:
    """Returns the view as declared for a version, under its own name."""
    return codec.decoded(version.definition)


def active_names(connection: Connection, source: str) -> dict[str, str]:
    """Returns the physical name of each view's active version."""
    return {view: each.physical_name for view, each in _current(read(connection, source)).items()}


def add(  # noqa: PLR0913, PLR0917  # the initial state of a version
    connection: Connection,
    source: str,
    view: AnyView,
    state: VersionState = VersionState.BUILDING,
    reasons: Sequence[str] = (),
    bounds: Mapping[str, Any] | None = None,
) -> int:
    """Creates a version of a view; returns its number."""
    values = {
        "source": source,
        "view": view.name,
        "state": str(state),
        "definition": Jsonb(codec.encoded(view)),
        "reasons": list(reasons),
        "bounds": None if bounds is None else Jsonb(dict(bounds)),
    }
    row = connection.execute(_ADD, values).fetchone()
    return int(row[0]) if row else 0


def move(
    connection: Connection,
    source: str,
    physical_name: str,
    state: VersionState,
    before: Iterable[VersionState],
) -> bool:
    """Changes a version's state if it has one of the given ones; returns whether it did."""
    states = [str(each) for each in before]
    given = {"state": str(state), "source": source, "place": physical_name, "before": states}
    return connection.execute(_MOVE, given).rowcount > 0


def note_replayed(
    connection: Connection, source: str, physical_name: str, replayed: FillProgress
) -> None:
    """Records how far a version has been filled."""
    connection.execute(_REPLAYED, (Jsonb(replayed_to_json(replayed)), source, physical_name))


def note_fault(
    connection: Connection, source: str, physical_name: str, fault: Fault | None
) -> None:
    """Records why a version that is being filled cannot continue."""
    document = None if fault is None else Jsonb(asdict(fault))
    connection.execute(_FAULT, (document, source, physical_name))


def forget(connection: Connection, source: str, physical_name: str) -> None:
    """Deletes a dropped version's positions and quarantined records."""
    with connection.transaction():
        for statement in _FORGET:
            connection.execute(statement, {"source": source, "place": physical_name})


def note_switching(connection: Connection, source: str, physical_name: str) -> None:
    """Records the target of a view's cutover, replacing an earlier one."""
    connection.execute(_SWITCHING, {"source": source, "place": physical_name})


@dataclass(frozen=True, slots=True)
class VersionsMark:
    """A fingerprint that changes as soon as the set of maintained versions changes.

    Attributes:
        definitions: Digest of the definition of each maintained version, by physical name.
        joining: Versions that may not be adopted by every query yet.
    """

    definitions: Mapping[str, str] = field(default_factory=dict)
    joining: frozenset[str] = frozenset()

    def among(self, names: Collection[str]) -> dict[str, str]:
        """Returns the definitions, without joining versions that are not in `names`."""
        return {
            physical_name: definition
            for physical_name, definition in self.definitions.items()
            if physical_name in names or physical_name not in self.joining
        }


def mark(connection: Connection, source: str, views: Iterable[str]) -> VersionsMark:
    """Returns the fingerprint of some views' versions."""
    if not ready(connection):
        return VersionsMark()
    rows = connection.execute(_MARK, (source, list(views))).fetchall()
    joining = frozenset(physical_name for physical_name, _, joins in rows if joins)
    return VersionsMark(
        {physical_name: definition for physical_name, definition, _ in rows}, joining
    )


@contextmanager
def version_lock(
    connection: Connection, source: str, view: str, *, wait_s: float = BUSY_WAIT_S
) -> Iterator[None]:
    """Takes the lock of a view's versions, held by the session.

    Args:
        connection: To the source, in autocommit.
        source: Its name.
        view: The view.
        wait_s: How long to wait for the lock, seconds.

    Raises:
        VersionBusyError: Another session holds it for longer.
    """
    try:
        with connection.transaction():  # the time-out is local, the lock is the session's
            # 0 would wait indefinitely
            connection.execute(f"SET LOCAL lock_timeout = {max(1, round(wait_s * 1000))}")
            connection.execute(_LOCK.in_session, (source, view))
    except psycopg.errors.LockNotAvailable:
        raise VersionBusyError(
            f"another session changes the versions of view {view} now",
            hint="headwater view list --versions shows a rebuild that is under way; one at a time",
        ) from None
    try:
        yield
    finally:
        connection.execute(_LOCK.free, (source, view))


def _current(versions: Iterable[ViewVersion]) -> dict[str, ViewVersion]:
    return {each.view: each for each in versions if each.state is VersionState.CURRENT}


def _version(*row: Any) -> ViewVersion:
    view, number, physical_name, state, definition, reasons, bounds, replayed, fault, *rest = row
    return ViewVersion(
        view,
        number,
        physical_name,
        VersionState(state),
        definition,
        tuple(reasons),
        bounds,
        None if replayed is None else replayed_of_json(replayed),
        None if fault is None else Fault(**fault),
        *rest,
    )
