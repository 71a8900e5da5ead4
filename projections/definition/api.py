"""The words with which views are declared: `view.mirror(...)`, `view.sql(...)`, `@view(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from projections.definition import mirror as declared
from projections.definition.derived import clock_skew, declare, heavy_hitters
from projections.definition.derived import lagged as derived_lagged
from projections.definition.derived import percolate as derived_percolate
from projections.definition.operators.measures import Approximate, Percentile, Top

if TYPE_CHECKING:
    from collections.abc import Callable

    from projections.definition.views import DerivedView

__all__ = ["view"]


class ViewWords:
    """Declares views; called itself, it is the decorator of `derived.declare.function`."""

    mirror = staticmethod(declared.mirror)
    events = staticmethod(declared.events)
    sql = staticmethod(declare.sql)
    document = staticmethod(declare.sql)
    aggregate = staticmethod(declare.aggregate)
    late = staticmethod(declare.late)
    lagged = staticmethod(derived_lagged.lagged)
    frequent = staticmethod(heavy_hitters.frequent)
    untimed = staticmethod(clock_skew.untimed)
    clocked = staticmethod(clock_skew.clocked)
    clocks = staticmethod(clock_skew.clocks)
    pattern = staticmethod(declare.pattern)
    percolate = staticmethod(derived_percolate.percolate)
    unreadable_queries = staticmethod(derived_percolate.unreadable_queries)
    Top = Top
    Percentile = Percentile
    Approximate = Approximate

    def __call__(self, *words: Any, **said: Any) -> Callable[[Callable[..., Any]], DerivedView]:
        """Declares a view by a function of DataFrames; see `derived.declare.function`."""
        return declare.function(*words, **said)


view: Final = ViewWords()
