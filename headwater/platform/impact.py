"""What becomes of a project's views: by what has happened at the source, or by a migration to come.

Views of tables decide as they always do, and it is rolled back (`projections.planning.impact`). Of
derived views the queries are analysed over what their inputs would be, which needs Spark: that is
done only if something is not as the job knows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cdc.postgres import session
from cdc.schema_change.trial import try_migration
from cdc.upkeep.difference import Difference, Part
from headwater.platform.specs import job_spec
from projections.archive import event_compatibility
from projections.definition.views import EventsView, view_of
from projections.errors import ViewPausedError
from projections.planning import impact
from projections.planning.schema_policy import SchemaOutcome
from projections.publishing.published_versions import Published
from projections.versions import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cdc.column_rule import Hiding
    from cdc.schema_change.trial import MigratedTable
    from cdc.table import TableName
    from headwater.project.project import Project
    from headwater.runtime import Endpoints
    from projections.common.fault import Fault
    from projections.definition.views import DerivedView, View
    from projections.planning.impact import SchemaImpact

_DOES: Final = {
    SchemaOutcome.FOLLOWED: "follows",
    SchemaOutcome.KEPT: "keeps its columns",
    SchemaOutcome.WAITING: "keeps its columns; rows written from then on wait",
    SchemaOutcome.PAUSED: "stands still",
    SchemaOutcome.RESUMED: "follows",
}
_RESUME: Final = "headwater view resume"
_BROKEN: Final = frozenset({SchemaOutcome.PAUSED, SchemaOutcome.WAITING})


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a change on one view.

    Attributes:
        view: Its name; its physical name if it is not the first version.
        changes: What happens to its table or inputs, in words.
        does: What the view does, in words.
        broken: Whether the view or some of its rows cannot continue unchanged.
        fault: Why it is paused; None if it is not.
    """

    view: str
    changes: tuple[str, ...]
    does: str
    broken: bool = False
    fault: Fault | None = None

    @property
    def then(self) -> str | None:
        """What lets it go on."""
        if self.fault is None:
            return "it goes on with what it is made from" if self.broken else None
        if self.fault.code != ViewPausedError.code or _RESUME not in (self.fault.hint or ""):
            return self.fault.hint
        view = view_of(self.view)
        return f"{self.fault.hint}; or beside it: headwater view rebuild {view}"


@dataclass(frozen=True, slots=True)
class Impact:
    """Foresees what becomes of a project's views.

    Attributes:
        project: The project.
        dsn: Where its source is.
        endpoints: Where the servers answer.
        hiding: What of the source's columns does not leave it as it is.
        failing: Derived views that the job cannot keep, and why; None if it does not run.
    """

    project: Project
    dsn: str
    endpoints: Endpoints
    hiding: Hiding
    failing: Mapping[str, Fault] | None = None

    def of_migration(self, migration: str) -> list[Effect]:
        """Tells what becomes of the views by a migration, which is tried and rolled back.

        Args:
            migration: SQL statements.

        Raises:
            MigrationError: It fails, or reaches beyond the copies that it is tried on.
        """
        tables, rules = self.project.source.tables, self.hiding.rules
        return self._effects(try_migration(self.dsn, tables, migration, rules))

    def of_source(self) -> list[Difference]:
        """Tells which views do not fit the source as it is, and which follow it with the job."""
        events = (view for view in self._views if isinstance(view, EventsView))
        return [*map(_difference, self._effects()), *_unread_events(self.dsn, events)]

    def _effects(self, migrated: Mapping[TableName, MigratedTable] | None = None) -> list[Effect]:
        with session.connect(self.dsn) as connection:
            source = self.project.source.name
            kept = registry.maintained(connection, source, self._views)
            shown = [each.view for each in kept if each.active]
            found = impact.predict(connection, source, shown, migrated, hiding=self.hiding)
        return [*_of_tables(found), *self._of_others(found, to_come=migrated is not None)]

    def _of_others(self, found: SchemaImpact, *, to_come: bool) -> Iterator[Effect]:
        """What becomes of derived views; of what has happened, a job knows it."""
        derived = self.project.declarations.derived | (self.project.readers if to_come else {})
        known = None if to_come else self.failing
        if known is None and derived and (found.views or not (to_come or self._kept(derived))):
            from projections.job.batch.check_dependents import unfit  # noqa: PLC0415  # loads Spark

            spec = job_spec(self.project, (), self.dsn, self.endpoints)
            spec = replace(spec, derived=tuple(derived.values()))
            known = unfit(spec, found.plans)
        shown = Published(self.project.home.root / "tables", self.project.source.name).current()
        # what the job says is of the versions that it keeps
        faults = {
            name: (known or {})[place]
            for name in derived
            if (place := name if known is not self.failing else shown.get(name, name))
            in (known or {})
        }
        still = {view_of(each.view) for each in found.views if each.fault is not None}
        for view in derived.values():
            waits_for = sorted((still | faults.keys()) & set(view.inputs))
            if waits_for:
                does = f"stands still with {', '.join(waits_for)}"
                yield Effect(view.name, (), does, broken=True)
            elif fault := faults.get(view.name):
                yield Effect(view.name, (), _DOES[SchemaOutcome.PAUSED], broken=True, fault=fault)
            if waits_for or view.name in faults:
                still.add(view.name)

    def _kept(self, derived: Mapping[str, DerivedView]) -> bool:
        """Whether every derived view was maintained by its declared query."""
        tables = self.project.home.root / "tables"
        published = Published(tables, self.project.source.name)
        latest, shown = published.latest(), published.current()
        known = {} if latest is None else latest.views
        kept = {name: known.get(shown.get(name, name)) for name in derived}
        return all(
            (table := kept[name]) is not None and table.query in view.fingerprints
            for name, view in derived.items()
        )

    @property
    def _views(self) -> list[View]:
        return list(self.project.declarations.views.values())


def _of_tables(found: SchemaImpact) -> Iterator[Effect]:
    for each in found.views:
        reads = "; the table is read again" if each.reads else ""
        does = _DOES[each.outcome] + reads
        yield Effect(each.view, each.changes, does, each.outcome in _BROKEN, each.fault)


def _difference(effect: Effect) -> Difference:
    fault = effect.fault
    cause = [] if fault is None else [fault.message, *filter(None, [fault.detail])]
    return Difference(
        Part.VIEW,
        effect.view,
        "columns" if effect.changes else "",
        "; ".join(effect.changes) or None,
        ": ".join([effect.does, *cause]),
        repaired=False,
        hint=effect.then or "the job will do it when it runs",
    )


def _unread_events(dsn: str, views: Iterable[EventsView]) -> list[Difference]:
    """Events that are in the store in a version that nothing brings to the declared one."""
    lacking = [view for view in views if any(event_compatibility.gaps(view))]
    if not lacking:
        return []
    with session.connect(dsn) as connection:
        return [
            Difference(
                Part.VIEW,
                view.name,
                "events",
                f"version {each.version} of {each.name} is in the store",
                each.error.message,
                repaired=False,
                hint=each.error.hint,
            )
            for view in lacking
            for each in event_compatibility.unread_events(connection, view)
        ]
