"""The interface of a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headwater.demo.result import Invariant
    from headwater.demo.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Probe:
    """A row of a captured table that holds a rising counter.

    Attributes:
        view: The view that mirrors its table.
        key: The row's key, in the order of the view's keys.
        column: Column of the counter.
        update: Statement that sets the counter, with one `%s`.
    """

    view: str
    key: Mapping[str, Any]
    column: str
    update: str


@dataclass(frozen=True, slots=True)
class Person:
    """A table of people, one of whom the demo erases.

    Attributes:
        table: The table.
        view: The view that mirrors it in all stores.
        column: A text column, which may contain non-ASCII characters.
        choose: Query that selects one key.
        overwrite: Statement that overwrites the personal columns of a row, with a `%s` for its key.
    """

    table: str
    view: str
    column: str
    choose: str
    overwrite: str


class SumReader(Protocol):
    """Sums a column of a view in one store."""

    def __call__(self, view: str, column: str) -> int:
        """Returns the sum; 0 for no rows."""


class Workload(Protocol):
    """Tables, rows and traffic that do not depend on the platform."""

    name: ClassVar[str]
    title: ClassVar[str]
    settings_file: ClassVar[Path]
    probe: ClassVar[Probe]
    spare_column: ClassVar[str | None]
    """Column of the probe's view that a rebuild may omit; None if there is none."""
    person: ClassVar[Person | None]
    """The people of whom one can be erased; None without people."""

    def prepare(self, dsn: str, scale: float) -> int:
        """Creates and fills the tables of an empty database.

        Returns:
            The number of created rows.

        Raises:
            WorkloadError: The database could not be filled.
        """

    def start_traffic(self, dsn: str, rate: float, seconds: float) -> Traffic:
        """Starts writing, at about `rate` row changes per second."""

    def invariants(self, dsn: str, stores: Mapping[str, SumReader]) -> tuple[Invariant, ...]:
        """Returns the sums that must be equal, in the source and in each store."""
