"""Former views: as they were before what published versions reach back to.

They are made by the archive, into tables of their own that last as long as they are asked about.
The source tells which of its tables were read when, so it has to answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import psycopg

from cdc.errors import CdcError
from cdc.lsn import Lsn
from cdc.postgres import session
from cdc.snapshot import reads
from headwater.errors import HeadwaterError
from headwater.reading import sql
from projections.common.scratch_dir import Scratch
from projections.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from headwater.platform.platform import Platform
    from projections.archive.as_of import Former, KnownReads
    from projections.archive.commits import Moment, Reached
    from projections.planning.view_plan import ViewPlan

_HINT: Final = (
    "the archive has mirrors, histories and events; use headwater view replay for derived views"
)


class FormerViews:
    """Makes a project's views as they were; what it has made goes when it is closed.

    Args:
        platform: The project, and where its source is.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._folder = Scratch()
        self._tables = self._folder.path / "tables"
        self.reached: Reached | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.close()

    def of_words(self, as_of: str, words: frozenset[str]) -> Mapping[str, Path]:
        """Makes the views that are named by one of a statement's words; returns their folders.

        Raises:
            AsOfError: The archive cannot tell the rows at that time, or all are derived views.
        """
        known, plans = self._known()
        chosen = [plan for plan in plans if plan.view.lower() in words]
        found = self._made(as_of, chosen, known)
        return {p.view: found.tables / p.name for p in chosen if p.name in found.versions}

    def versions(self, earlier: str, later: str | None, name: str) -> tuple[Path, int, int]:
        """Makes one view as of two moments.

        Args:
            earlier: The first.
            later: The second; None for the last that the archive can tell of.
            name: The view.

        Returns:
            The folder of its table, and the versions that stand there.

        Raises:
            AsOfError: The archive cannot tell the rows at that time, or it is a derived view.
        """
        known, every = self._known()
        plans = [plan for plan in every if plan.view == name]
        first, second = (self._made(each, plans, known) for each in (earlier, later))
        if (second.reached.epoch, second.reached.commit) < (
            first.reached.epoch,
            first.reached.commit,
        ):  # a table is carried on to later moments only
            self._tables = self._folder.path / "other"
            second, first = (self._made(each, plans, known) for each in (later, earlier))
        place = plans[0].name
        return first.tables / place, first.versions[place], second.versions[place]

    def _known(self) -> tuple[KnownReads, tuple[ViewPlan, ...]]:
        from projections.archive.as_of import KnownReads  # noqa: PLC0415  # a second of import

        source = self._platform.project.source.name
        try:
            with session.connect(self._platform.source_dsn) as connection:
                newest = reads.epoch_of(connection, source, 1)
                every = [
                    read
                    for epoch in range(1, newest + 1)
                    for read in reads.of_source(connection, source, epoch)
                ]
            plans = tuple(plan for plan in self._platform.views.plans() if plan.active)
        except (CdcError, HeadwaterError, psycopg.Error) as error:
            raise sql.AsOfError(
                "no published version is that old, and the source does not answer",
                detail=getattr(error, "code", type(error).__name__),
                hint="run headwater up; then views can be computed from the archive",
            ) from None
        return KnownReads([read for read in every if read.whole and read.done]), plans

    def _made(self, as_of: str | None, plans: Collection[ViewPlan], known: KnownReads) -> Former:
        from projections.archive.as_of import former  # noqa: PLC0415  # a second of import

        if not plans:
            raise sql.AsOfError("no published version is that old", hint=_HINT)
        project = self._platform.project
        archive = project.home.root / "archive" / project.source.name
        try:
            made = former(archive, plans, _moment(as_of), self._tables, known)
        except ReplayError as error:
            raise sql.AsOfError(error.message, detail=error.detail, hint=error.hint) from None
        self.reached = made.reached
        return made


def _moment(as_of: str | None) -> Moment:
    from projections.archive.commits import Moment  # noqa: PLC0415  # a second of import

    if as_of is None:
        return Moment()
    then = sql.moment(as_of)
    if then is None:
        raise sql.AsOfError("the version is no longer kept", detail=as_of[:80])
    if isinstance(then, Lsn):
        return Moment(lsn=then)
    return Moment(at_us=round(then.timestamp() * 1_000_000))
