"""Which views of a source are read by derived views of another, and the reverse."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.definition.views import DerivedView


@dataclass(frozen=True, slots=True)
class CrossReads:
    """What derived views over several sources mean to one of these sources.

    Attributes:
        read: Views of other sources that its derived views read, each with its source.
        readers: Derived views that have rows of it and that the job of another source maintains,
            each with that source.
        fed: Its own views that such views read themselves.
        derived: Those views, each after what it reads.
    """

    read: Mapping[str, str] = field(default_factory=dict)
    readers: Mapping[str, str] = field(default_factory=dict)
    fed: frozenset[str] = frozenset()
    derived: tuple[DerivedView, ...] = ()


NO_CROSS_READS: Final = CrossReads()
"""Of a source whose views read no other source, and are read by none."""
