"""Views of one source that derived views of another source read, and the reverse."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.definition.views import DerivedView


@dataclass(frozen=True, slots=True)
class CrossReads:
    """The cross-source reads of one source.

    Attributes:
        read: Views of other sources that its derived views read, each with its source.
        readers: Derived views that read it and are maintained by the job of another source, each
            with that source.
        fed: Its own views that those derived views read directly.
        derived: Those derived views, each after its inputs.
    """

    read: Mapping[str, str] = field(default_factory=dict)
    readers: Mapping[str, str] = field(default_factory=dict)
    fed: frozenset[str] = frozenset()
    derived: tuple[DerivedView, ...] = ()


NO_CROSS_READS: Final = CrossReads()
"""A source without cross-source reads."""
