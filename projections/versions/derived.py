"""Versions of derived views: which ones the job computes, and in which order.

No archive fills such a version. The job computes it completely at the next boundary from the tables
of its inputs, and then maintains it at every boundary with the others. Views that read another view
read its active version, and are recomputed after a cutover.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Final

from projections.definition.diff import DefinitionChangeKind
from projections.definition.views import DerivedView
from projections.errors import DefinitionUnreadableError, RebuildRefusedError
from projections.versions import function_store, registry
from projections.versions.version import KEPT, VersionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import psycopg

    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]

_READ: Final = """
SELECT DISTINCT jsonb_array_elements_text(definition -> 'inputs') FROM headwater.view_versions
 WHERE source = %s AND view = ANY (%s) AND state IN ('joining', 'held', 'current', 'former')
"""


@dataclass(frozen=True, slots=True)
class MaintainedDerivedView:
    """A version of a derived view that the job maintains.

    Attributes:
        view: The view, under the version's physical name.
        joining: Whether it must still be computed for the first time.
    """

    view: DerivedView
    joining: bool = False


def maintained(
    connection: Connection, source: str, declared: Sequence[DerivedView], functions: Path
) -> list[MaintainedDerivedView]:
    """Returns the versions that the job maintains of each declared view, inputs first.

    Inactive versions of a view precede the active one, so the active one is never ahead in another
    store. A view without versions is maintained as declared. A version whose definition cannot be
    read is left out.

    Args:
        connection: To the source, in autocommit.
        source: Its name.
        declared: The declared views.
        functions: The folder of stored functions.
    """
    by_view: dict[str, list[ViewVersion]] = {}
    for version in registry.read(connection, source):
        by_view.setdefault(version.view, []).append(version)
    by_name: dict[str, list[MaintainedDerivedView]] = {}
    for view in declared:
        if view.name not in by_view:
            by_name[view.name] = [MaintainedDerivedView(view)]
            continue
        versions = [each for each in by_view[view.name] if each.state in KEPT]
        versions.sort(key=lambda each: each.state is VersionState.CURRENT)
        defined = (_maintained(connection, version, view, functions) for version in versions)
        by_name[view.name] = [each for each in defined if each is not None]
    views = {name: [each.view for each in versions] for name, versions in by_name.items()}
    try:
        names = in_order(views)
    except RebuildRefusedError:  # adopted in place: the views of the cycle are paused
        names = list(views)
    return [each for name in names for each in by_name[name]]


def maintained_views(
    connection: Connection, source: str, declared: Sequence[DerivedView], functions: Path
) -> tuple[DerivedView, ...]:
    """Returns the views of `maintained`, under their physical names."""
    if not declared:
        return ()
    return tuple(each.view for each in maintained(connection, source, declared, functions))


def _maintained(
    connection: Connection, version: ViewVersion, view: DerivedView, functions: Path
) -> MaintainedDerivedView | None:
    joining = version.state is VersionState.JOINING
    try:
        if version.state is VersionState.CURRENT:
            change = registry.changed(connection, version, view)
            if change.kind is not DefinitionChangeKind.REBUILD:
                return MaintainedDerivedView(replace(view, name=version.physical_name))
        declared = version.declared()
    except DefinitionUnreadableError:
        return None
    if not isinstance(declared, DerivedView):
        return None
    return MaintainedDerivedView(function_store.with_function(declared, view, functions), joining)


def read(connection: Connection, source: str, views: Iterable[str]) -> frozenset[str]:
    """Returns the names of the views that the maintained versions of some views read."""
    if not registry.ready(connection):
        return frozenset()
    rows = connection.execute(_READ, (source, list(views))).fetchall()
    return frozenset(name for (name,) in rows)


def in_order(views: Mapping[str, Iterable[DerivedView]]) -> list[str]:
    """Sorts names of views: each after those that a version of it reads.

    Raises:
        RebuildRefusedError: Their inputs form a cycle.
    """
    reads = {
        name: {each for version in versions for each in version.inputs if each in views}
        for name, versions in views.items()
    }
    try:
        return list(TopologicalSorter(reads).static_order())
    except CycleError as error:
        circle = " <- ".join(error.args[1])
        raise RebuildRefusedError(
            "versions of these views would each be made from the next",
            detail=circle,
            hint="move readers of one to its new version, and drop the old one, before the next is"
            " rebuilt",
        ) from None
