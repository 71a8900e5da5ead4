"""Registry: the declarations of one module of views, collected while `load` runs it.

Each call to `source`, `view.mirror` and the like registers itself, so the module needs no list at
its end.
"""

from __future__ import annotations

import re
import runpy
import sys
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cdc.errors import CdcError
from eventstore.errors import EventStoreError
from projections.definition import module_error
from projections.definition.cross_reads import CrossReads
from projections.errors import DeclarationError, ProjectionError

if TYPE_CHECKING:
    from pathlib import Path

    from projections.definition.alert import Alert
    from projections.definition.dashboard import Dashboard
    from projections.definition.views import DerivedView, Source, View


_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(slots=True)
class Declarations:
    """Everything that one module declares: sources, views and alerts by name.

    Attributes:
        sources: Sources.
        views: Views of one table each, or of events.
        derived: Derived views.
        alerts: Alerts on rows of views.
        dashboard: The project's dashboard; None for the default one.
        module: Path of the module; relative file names are resolved beside it.
        folders: Additional folders to import modules from.
    """

    sources: dict[str, Source] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    derived: dict[str, DerivedView] = field(default_factory=dict)
    alerts: dict[str, Alert] = field(default_factory=dict)
    dashboard: Dashboard | None = None
    module: Path | None = None
    folders: tuple[Path, ...] = ()

    def refuse_taken(self, name: str) -> None:
        """Refuses a name that another view has.

        Raises:
            DeclarationError: The name is taken.
        """
        if name in self.views or name in self.derived:
            raise DeclarationError(f"two views have the name {name}")

    def source_of(self, view: str) -> str:
        """Returns the name of the source whose job maintains a declared view."""
        return self.sources_of(view)[0]

    def sources_of(self, view: str) -> tuple[str, ...]:
        """Returns the sources that a declared view reads, in the order of their declarations.

        The job of the first one maintains the view, so editing a query does not move the view to
        another job.
        """
        return self._sources()[view]

    def of_source(self, source: str) -> Declarations:
        """Returns the declarations of one source; a dashboard may read views of every source."""
        views = {name: view for name, view in self.views.items() if view.source == source}
        known = self._sources()
        derived = {n: view for n, view in self.derived.items() if known[n][0] == source}
        alerts = {
            name: alert for name, alert in self.alerts.items() if alert.view in {**views, **derived}
        }
        sources = {source: self.sources[source]}
        return replace(self, sources=sources, views=views, derived=derived, alerts=alerts)

    def cross_reads(self, source: str) -> CrossReads:
        """Returns the cross-source reads of one source."""
        known = self._sources()
        read: dict[str, str] = {}
        readers: dict[str, str] = {}
        fed: set[str] = set()
        for name, view in self.derived.items():
            owner = known[name][0]
            owners = {each: known[each][0] for each in view.inputs}
            if owner == source:
                read.update({each: of for each, of in owners.items() if of != source})
            elif source in known[name]:
                readers[name] = owner
                fed.update(each for each, of in owners.items() if of == source)
        derived = tuple(self.derived[name] for name in readers)
        return CrossReads(read, readers, frozenset(fed), derived)

    def _sources(self) -> dict[str, tuple[str, ...]]:
        sources: dict[str, tuple[str, ...]] = {n: (view.source,) for n, view in self.views.items()}
        for name, view in self.derived.items():  # each after its inputs
            reached = {source for each in view.inputs for source in sources[each]}
            sources[name] = tuple(each for each in self.sources if each in reached)
        return sources


_current: ContextVar[Declarations | None] = ContextVar("declarations", default=None)


def load(path: Path, *folders: Path) -> Declarations:
    """Runs a module of declarations and returns them.

    It may import modules beside it. Events are declared in one of those, because the executors of a
    job import it as well.

    Args:
        path: The module.
        folders: Additional folders to import modules from.

    Raises:
        DeclarationError: The file is missing, cannot be run, or contains an invalid declaration.
    """
    if not path.is_file():
        raise DeclarationError(
            "the views module does not exist", detail=str(path), hint="headwater init"
        )
    for folder in (path.parent, *folders):
        if str(folder.resolve()) not in sys.path:
            # last, so that a user's module never shadows one of this program
            sys.path.append(str(folder.resolve()))
    declarations = Declarations(module=path.resolve(), folders=folders)
    token = _current.set(declarations)
    try:
        runpy.run_path(str(path), run_name="headwater_views")
    except (ProjectionError, CdcError, EventStoreError) as error:
        error.detail = ": ".join(filter(None, (module_error.place(path, error), error.detail)))
        raise
    except Exception as error:
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        place = module_error.place(path, error)
        raise DeclarationError(
            f"{path.name} raised an error",
            detail=": ".join(filter(None, (place, type(error).__name__, message))),
            hint=module_error.hint(path, error),
        ) from error
    finally:
        _current.reset(token)
    return declarations


def collected() -> Declarations:
    """Returns the declarations so far; None outside `load`."""
    declarations = _current.get()
    # outside `load` (a notebook, a test) a declaration registers nowhere
    return Declarations() if declarations is None else declarations


def checked(name: str, subject: str) -> str:
    """Returns a valid name.

    Raises:
        DeclarationError: The name is invalid.
    """
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{subject} name is invalid",
            detail=name[:80],
            hint=(
                "use at most 63 lower-case letters, digits and underscores, starting with a letter"
            ),
        )
    return name
