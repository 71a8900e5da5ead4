"""The content of the files of published versions: positions, tables, versions, physical names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cdc.lsn import Lsn
from projections.changes.record import Record  # noqa: TC001  # msgspec resolves it
from projections.publishing.boundary import UnpublishedProgress

if TYPE_CHECKING:
    from collections.abc import Mapping


class SourcePosition(msgspec.Struct, frozen=True, order=True):
    """A transaction boundary of one source.

    Attributes:
        epoch: Incarnation of the source.
        lsn: The boundary, in bytes.
    """

    epoch: int
    lsn: int


class TableVersion(msgspec.Struct, frozen=True):
    """A view's table at a boundary.

    Attributes:
        version: Version of its Delta table.
        epoch: Incarnation of the source.
        lsn: The boundary of the table, in bytes: that of the published version, or an earlier one
            while the view's table is being read again.
        made_from: For a derived view, the versions of its inputs.
        query: For a derived view, the fingerprint of its query.
        others: For a view over several sources, the boundary of each other source.
    """

    version: int
    epoch: int
    lsn: int
    made_from: dict[str, int] = {}
    query: str = ""
    others: dict[str, SourcePosition] = {}

    @property
    def applied_through(self) -> Lsn:
        """Returns the position through which the table is complete, without anything later."""
        return Lsn(self.lsn)


class PublishedVersion(msgspec.Struct, frozen=True):
    """The tables of a source's views at one boundary.

    Attributes:
        number: Its number, from 1.
        epoch: Incarnation of the source.
        lsn: The boundary, in bytes.
        published_at_us: When the tables reached the boundary, microseconds since 1970, UTC.
        views: Version of each view's table.
        complete: Whether it includes the derived views.
        others: Boundaries of other sources at which its derived views were computed.
    """

    number: int
    epoch: int
    lsn: int
    published_at_us: int
    views: dict[str, TableVersion]
    complete: bool = True
    others: dict[str, SourcePosition] = {}

    @property
    def applied_through(self) -> Lsn:
        """Returns the boundary."""
        return Lsn(self.lsn)

    def by_view(self, places: Mapping[str, str]) -> dict[str, tuple[str, TableVersion]]:
        """Returns physical name and version of each view, by the view's own name.

        Args:
            places: Physical names that differ from the view's name; see `Published.current`. A view
                whose physical name has no published version is left out.
        """
        names = {name for name in self.views if "." not in name} | places.keys()
        chosen = {name: places.get(name, name) for name in sorted(names)}
        return {name: (at, self.views[at]) for name, at in chosen.items() if at in self.views}


class Switch(msgspec.Struct, frozen=True):
    """A change of physical names.

    Attributes:
        at_us: Its time, microseconds since 1970, UTC.
        was: The former physical names.
    """

    at_us: int
    was: dict[str, str]


class Current(msgspec.Struct, frozen=True):
    """The active physical name of each view of a source.

    Attributes:
        places: Physical names by view. A view without an entry uses its own name; a retired view is
            not readable, even if it is still published.
        switches: The cutovers so far, the newest last, as far back as versions can be read.
    """

    places: dict[str, str] = {}
    switches: list[Switch] = []

    def at(self, at_us: int) -> dict[str, str]:
        """Returns the physical names at a time."""
        places = dict(self.places)
        for switch in reversed(self.switches):
            if switch.at_us > at_us:
                places |= switch.was
        return places


class PendingRecords(msgspec.Struct, frozen=True):
    """Records beyond a boundary.

    Attributes:
        ahead: Records that the tables have.
        waiting: Records that wait for a later boundary, by topic.
    """

    ahead: UnpublishedProgress = UnpublishedProgress()
    waiting: list[tuple[str, list[Record]]] = []


class StableData(msgspec.Struct, frozen=True):
    """The content of a stable table.

    Attributes:
        place: Physical name of the table with the rows.
        version: Its version.
        number: Number of the published version.
        epoch: Incarnation of the source.
        lsn: The boundary of the rows, in bytes.
        mark: Distinguishes the table's commit from that of another table of the same name.
    """

    place: str
    version: int
    number: int
    epoch: int
    lsn: int
    mark: str

    @property
    def applied_through(self) -> Lsn:
        """Returns the boundary."""
        return Lsn(self.lsn)

    def parameters(self) -> dict[str, str]:
        """Returns it as parameters in the history of the Delta table."""
        fields = {name: str(value) for name, value in msgspec.structs.asdict(self).items()}
        return {**fields, "boundary": str(self.applied_through)}

    @staticmethod
    def of_parameters(parameters: object) -> StableData:
        """Reads them back.

        Raises:
            msgspec.ValidationError: Another program wrote them.
        """
        return _STABLE.decode(msgspec.json.encode(parameters))


_STABLE: Final = msgspec.json.Decoder(StableData, strict=False)
