"""A version of a view as a value: its state, its definition, and how far it was filled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from projections.definition import codec
from projections.definition.views import DerivedView, EventsView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from projections.common.fault import Fault
    from projections.common.offsets import Offsets
    from projections.definition.views import AnyView


class VersionState(StrEnum):
    """The state of a version.

    =========  =======================================  ================================
    state      set by                                   next state
    =========  =======================================  ================================
    building   a rebuild that begins                    joining, dropped
    joining    a rebuild that has replayed the archive  held; building if it came too late
    held       the job, once it is in every store       current, dropped
    current    the first; a switch                      former
    former     a switch away from it                    current, dropped
    dropped    a person                                 nothing
    =========  =======================================  ================================
    """

    BUILDING = "building"  # being filled from the archive; the job does not maintain it yet
    JOINING = "joining"  # filled; the job is adopting it from the end of the archive
    HELD = "held"  # maintained by the job, and not active
    CURRENT = "current"  # maintained, and active
    FORMER = "former"  # maintained, and formerly active
    DROPPED = "dropped"  # removed


KEPT: Final = frozenset(
    {VersionState.JOINING, VersionState.HELD, VersionState.CURRENT, VersionState.FORMER}
)
"""States of versions that the job maintains."""


@dataclass(frozen=True, slots=True)
class FillProgress:
    """The progress of filling a version.

    Attributes:
        ends: Offset after the last record of each partition that it has.
        progress: State from which an interrupted replay continues; None once it is done.
        records: Number of records replayed, without catch-up rounds.
        seconds: Duration of that replay.
        share: Greatest share of that time that the replay could use, above 0 to 1; None if unknown.
        archive: The version of the archive whose records it has, and a digest of its files; None
            until it has reached an end of the archive.
        rounds: Number of catch-up rounds.
    """

    ends: Offsets
    progress: Mapping[str, Any] | None = None
    records: int = 0
    seconds: float = 0.0
    share: float | None = None
    archive: tuple[int, str] | None = None
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class ViewVersion:
    """A version of a view.

    Attributes:
        view: The view.
        number: Its number, from 1.
        physical_name: Its name in every store, such as `orders.v2`.
        state: Its state.
        definition: Its definition, as `codec.encoded` returns it.
        reasons: How the definition differs from the version before.
        bounds: The part of the log that filled it; None for all of it.
        replayed: How far it was filled; None if it was never filled from the archive.
        fault: Why it cannot continue; None if it can.
        switching: Whether a cutover to it is in progress.
        made_at: When it was created.
        changed_at: When its state last changed.
    """

    view: str
    number: int
    physical_name: str
    state: VersionState
    definition: Any
    reasons: tuple[str, ...] = ()
    bounds: Mapping[str, Any] | None = None
    replayed: FillProgress | None = None
    fault: Fault | None = None
    switching: bool = False
    made_at: datetime | None = None
    changed_at: datetime | None = None

    @property
    def derived(self) -> bool:
        """Returns whether it is a version of a derived view."""
        return isinstance(codec.decoded(self.definition), DerivedView)

    def declared(self, among: Iterable[AnyView] = ()) -> AnyView:
        """Returns the view that the job maintains for it.

        Args:
            among: Declared views; a view of events uses the registry of its declared version.

        Raises:
            DefinitionUnreadableError: Its definition cannot be read.
        """
        decoded = codec.decoded(self.definition)
        same = next((view for view in among if view.name == self.view), None)
        if isinstance(decoded, EventsView) and isinstance(same, EventsView):
            decoded = replace(
                decoded, events=replace(decoded.events, registry=same.events.registry)
            )
        return replace(decoded, name=self.physical_name)


def replayed_to_json(replayed: FillProgress) -> dict[str, Any]:
    """Converts it to the form in the source database."""
    ends = [[topic, number, offset] for (topic, number), offset in replayed.ends.items()]
    figures = {
        "records": replayed.records,
        "seconds": replayed.seconds,
        "share": replayed.share,
        "archive": replayed.archive,
        "laps": replayed.rounds,
    }
    return {"ends": ends, "progress": replayed.progress, **figures}


def replayed_of_json(stored: Mapping[str, Any]) -> FillProgress:
    """Converts it from the form in the source database."""
    ends = {(topic, number): offset for topic, number, offset in stored["ends"]}
    if stored.get("until") is not None:
        # an earlier release filled it from a copy of its topic: it cannot be resumed
        return FillProgress({}, None, stored["records"], stored["seconds"], stored.get("share"))
    archive = stored.get("archive")
    return FillProgress(
        ends,
        stored["progress"],
        stored["records"],
        stored["seconds"],
        stored.get("share"),
        None if archive is None else (archive[0], archive[1]),
        stored.get("laps", 0),
    )
