"""The words with which views are declared: `view.mirror(...)`, `view.sql(...)`, `@view(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from projections import clock, derived_view, earlier_window, heavy_hitters, percolated_view
from projections import declaration as declared
from projections.measure import Approximate, Percentile, Top

if TYPE_CHECKING:
    from collections.abc import Callable

    from projections.view import DerivedView

__all__ = ["view"]


class ViewWords:
    """Declares views; called itself, it is the decorator of `projections.derived_view.function`."""

    mirror = staticmethod(declared.mirror)
    events = staticmethod(declared.events)
    sql = staticmethod(derived_view.sql)
    document = staticmethod(derived_view.sql)
    aggregate = staticmethod(derived_view.aggregate)
    late = staticmethod(derived_view.late)
    lagged = staticmethod(earlier_window.lagged)
    frequent = staticmethod(heavy_hitters.frequent)
    untimed = staticmethod(clock.untimed)
    clocked = staticmethod(clock.clocked)
    clocks = staticmethod(clock.clocks)
    pattern = staticmethod(derived_view.pattern)
    percolate = staticmethod(percolated_view.percolate)
    unreadable_queries = staticmethod(percolated_view.unreadable_queries)
    Top = Top
    Percentile = Percentile
    Approximate = Approximate

    def __call__(self, *words: Any, **said: Any) -> Callable[[Callable[..., Any]], DerivedView]:
        """Declares a view by a function of DataFrames; see `projections.derived_view.function`."""
        return derived_view.function(*words, **said)


view: Final = ViewWords()
