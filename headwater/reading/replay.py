"""Replays of derived views: from the archive, as one bounded batch.

Views of the source are made by the archive as they were at a moment, and those made from them are
computed from those. At the boundary of a published version the rows are those that readers saw
there.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import psycopg

from cdc.errors import CdcError
from cdc.lsn import Lsn
from foundation.suggestion import did_you_mean
from headwater.errors import HeadwaterError, UsageError
from headwater.platform.specs import job_config
from headwater.reading import sql
from headwater.reading.time_travel import FormerViews
from projections.errors import ReplayError
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from headwater.platform.platform import Platform
    from headwater.project.project import Project
    from projections.archive.commits import Reached
    from projections.definition.views import DerivedView
    from projections.job.batch.replay_derived import ReplayComparison
    from projections.publishing.published_content import PublishedVersion

_BEHIND_HINT: Final = "headwater view status says how far the views are"


@dataclass(frozen=True, slots=True)
class ViewReplay:
    """The result of a replay.

    Attributes:
        view: The view.
        applied_through: Its position.
        at: Time of the last commit included.
        made_from: Views of the source from which it was computed, directly or indirectly.
        rows: Number of rows.
        version: Number of the published version for the comparison.
        compared: The differences; None without a comparison.
    """

    view: str
    applied_through: Lsn
    at: datetime
    made_from: tuple[str, ...]
    rows: int
    version: int | None = None
    compared: ReplayComparison | None = None


def replay_view(
    platform: Platform,
    name: str,
    until: str | None = None,
    *,
    compare: bool = False,
    to: Path | None = None,
) -> ViewReplay:
    """Computes a derived view as it was at a moment, from the archive alone.

    Args:
        platform: The project and its source.
        name: The view.
        until: The moment: a position, a time, or the number of a published version; default: the
            last one in the archive. For a comparison, it is rounded down to the newest published
            version that includes the view.
        compare: Whether to compare it with the published version.
        to: Folder for its table.

    Raises:
        UsageError: There is no such view, it is not a derived view, or the folder is not empty.
        AsOfError: The archive does not cover the moment, or the view was not published then.
        ProjectionError: Its query fails.
    """
    project = platform.project
    chain = chain_of(project, name)
    bases = tuple(dict.fromkeys(each for view in chain for each in _bases(project, view)))
    if to is not None and to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(
            "the folder is not empty", detail=str(to), hint="set --to to a new or empty folder"
        )
    if until is not None:
        sql.moment(until)  # what is no moment is refused before anything is read
    tables = project.home.root / "tables"
    published = Published(tables, project.source.name)
    _require_moving(platform, bases)
    archived = _archived(project)
    version = None
    if compare:
        version = boundary(published.all(), chain, archived, until, published.current)
    as_of = _as_of(published, archived, until) if version is None else str(version.applied_through)
    with FormerViews(platform) as former:
        places = former.of_words(as_of, frozenset(bases))
        reached = former.reached
        assert reached is not None  # noqa: S101  # it has made them
        if version is not None:
            _require_same(version, places, published)
        # what follows loads Spark, which no other command waits for
        from projections.job.batch.replay_derived import replay_beside  # noqa: PLC0415

        lsn = reached.commit if version is None else version.applied_through
        root = next(iter(places.values())).parent
        config = job_config(project, platform.source_dsn, platform.endpoints)
        names = {view: path.name for view, path in places.items()}
        replay = replay_beside(config, root, names, reached.epoch, lsn.value)
        rows, compared = replay.make(chain), None
        if version is not None:
            place = published.current(version.published_at_us).get(name, name)
            compared = replay.compare(chain[-1], tables, place, version.views[place].version)
        if to is not None:
            to.parent.mkdir(parents=True, exist_ok=True)
            if to.exists():
                to.rmdir()
            shutil.move(root / name, to)
    at = datetime.fromtimestamp(reached.at_us / 1_000_000, UTC)
    number = None if version is None else version.number
    return ViewReplay(name, lsn, at, bases, rows, number, compared)


def chain_of(project: Project, name: str) -> list[DerivedView]:
    """Returns a view with the derived views that it is made from, each after what it reads.

    Raises:
        UsageError: There is no such view, or it is not a derived view.
    """
    views, derived = project.declarations.views, project.declarations.derived
    if name in views:
        raise UsageError(
            f"view {name} reads a table, and no other view",
            detail=f"its table: {views[name].table}",
            hint=f"headwater view rebuild {name} rebuilds it from the archive; headwater "
            "query --as-of shows its past",
        )
    if name not in derived:
        hint = did_you_mean(name, [*derived, *views], "headwater view list")
        raise UsageError(f"no view is named {name[:80]}", hint=hint)
    wanted = {name}
    for each in reversed(derived.values()):  # a view is declared after those that it reads
        if each.name in wanted:
            wanted |= {read for read in each.inputs if read in derived}
    chain = [view for view in derived.values() if view.name in wanted]
    others = project.cross_reads.read
    for view in chain:
        if mixed := [f"{each} of source {others[each]}" for each in view.inputs if each in others]:
            raise UsageError(
                f"view {name} combines several sources, and an archive has one",
                detail=f"{view.name} reads {', '.join(mixed)}",
                hint=f"headwater view verify {name} compares it with its query",
            )
    return chain


def boundary(
    versions: Sequence[PublishedVersion],
    chain: Sequence[DerivedView],
    archived: Reached,
    until: str | None = None,
    shown: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> PublishedVersion:
    """Returns the newest published version that a replay can be compared with.

    Args:
        versions: The readable versions, the oldest first.
        chain: The view, after the derived views that it reads.
        archived: The commit that the archive reaches.
        until: The latest moment allowed; see `replay_view`.
        shown: Returns the physical names at a time; see `Published.current`.

    Raises:
        AsOfError: There is no such version.
    """
    name = chain[-1].name
    wanted = [version for version in versions if until is None or _by_then(version, until)]
    if not wanted:
        raise sql.AsOfError(
            f"the published rows of view {name} at that time cannot be read",
            detail=f"{len(versions)} published versions are kept",
            hint="headwater view versions",
        )
    there = [
        version for version in wanted if _stands(version, chain, shown(version.published_at_us))
    ]
    if not there:
        raise sql.AsOfError(
            f"view {name} has no common boundary with its inputs",
            detail=f"{len(wanted)} published versions were checked",
            hint=_BEHIND_HINT,
        )
    told = [
        version
        for version in there
        if version.epoch == archived.epoch and version.applied_through <= archived.commit
    ]
    if not told:
        raise sql.AsOfError(
            "the archive has not reached a published version yet",
            detail=(
                f"the archive is at {archived.commit}; view {name} at {there[0].applied_through}"
            ),
            hint="retry; while the job runs, this takes seconds",
        )
    return told[-1]


def _by_then(version: PublishedVersion, until: str) -> bool:
    then = sql.moment(until)
    if then is None:
        return version.number == int(until)
    if isinstance(then, Lsn):
        return version.applied_through <= then
    return version.published_at_us <= round(then.timestamp() * 1_000_000)


def _stands(
    version: PublishedVersion, chain: Sequence[DerivedView], shown: Mapping[str, str]
) -> bool:
    """Returns whether the views are at the boundary itself, by their declared queries."""
    tables = [version.views.get(shown.get(view.name, view.name)) for view in chain]
    return all(
        table is not None
        and (table.epoch, table.lsn) == (version.epoch, version.lsn)
        and table.query in view.fingerprints
        for table, view in zip(tables, chain, strict=True)
    )


def _require_same(
    version: PublishedVersion, places: Mapping[str, Path], published: Published
) -> None:
    """Refuses a comparison with rows that were made by another definition of a mirror."""
    shown = published.current(version.published_at_us)
    moved = [view for view, path in places.items() if shown.get(view, view) != path.name]
    if moved:
        raise sql.AsOfError(
            f"the active version of view {moved[0]} has changed",
            detail=f"it was read from {shown.get(moved[0], moved[0])}",
            hint=(
                "compare again when the job has recomputed its derived views: headwater view status"
            ),
        )


def _bases(project: Project, view: DerivedView) -> list[str]:
    """The views of the source that a view reads."""
    declared = project.declarations.views
    return [name for name in view.inputs if name in declared]


def _require_moving(platform: Platform, bases: Sequence[str]) -> None:
    """Refuses paused views, and a source that does not answer."""
    try:
        bound = platform.views.bound()
    except (CdcError, HeadwaterError, psycopg.Error) as error:
        raise sql.AsOfError(
            "the source, which stores the times of snapshots, does not answer",
            detail=getattr(error, "code", type(error).__name__),
            hint="run headwater up; then views can be computed from the archive",
        ) from None
    for paused in bound.paused:
        if paused.name in bases:
            fault = paused.fault
            raise sql.AsOfError(fault.message, detail=fault.detail, hint=fault.hint)


def _archived(project: Project) -> Reached:
    """The last commit that the archive names.

    Raises:
        AsOfError: There is no archive, or it names none.
    """
    from projections.archive.commits import Commits, Moment  # noqa: PLC0415
    from projections.archive.scan import ArchiveScan  # noqa: PLC0415
    from projections.common.table_pins import pinned  # noqa: PLC0415  # a second of import

    archive = project.home.root / "archive" / project.source.name
    try:
        scan = ArchiveScan(archive, None)
        with pinned(archive, scan.version):
            return Commits(scan).reached(Moment())
    except ReplayError as error:
        raise sql.AsOfError(error.message, detail=error.detail, hint=error.hint) from None


def _as_of(published: Published, archived: Reached, until: str | None) -> str:
    """The position or time that is meant."""
    if until is None:
        return str(archived.commit)
    if sql.moment(until) is not None:
        return until
    number = int(until)
    found = [version for version in published.all() if version.number == number]
    if not found:
        raise sql.AsOfError(
            "the version is no longer kept", detail=until[:80], hint="headwater view versions"
        )
    return str(found[0].applied_through)
