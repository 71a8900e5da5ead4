"""Which of a view's columns an input gives as they are, for all its rows.

Let `c` be columns of the result to which every path from every use of an input leads by itself: no
join on the way, each column an input's own. Rows of the input whose values are not among some
values of `c` have no part in the result's rows for those: take them away, and by what `lineage`
promises the rows of the result can differ only for values that the rows taken away have. So for
some values of `c`, the result can be computed from the input's rows with these values alone, and a
change of only this input can be followed to `c` without looking at another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.incremental.analysis.path import Changed, Derived, Kept, Widened
from projections.incremental.analysis.query_plan import Address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.incremental.analysis.path import Step
    from projections.incremental.analysis.query_plan import Operator


def own_columns(plan: Operator, path: Step) -> dict[int, int]:
    """Returns columns that a path takes over from its changed rows.

    Args:
        plan: The plan that the path is of.
        path: The path.

    Returns:
        By the number of a column, that of the leaf's column it is; none where the path joins.
    """
    return _own(_bare(plan), path)


def _own(bare: Mapping[Address, int], path: Step) -> dict[int, int]:
    if isinstance(path, Changed):
        return {number: number for number in path.columns}
    if isinstance(path, Kept | Widened):
        return _own(bare, path.child)
    if not isinstance(path, Derived):
        return {}
    below = _own(bare, path.child)
    made = {
        number: bare[source]
        for number, source in path.columns
        if source is not None and source in bare
    }
    return {number: below[source] for number, source in made.items() if source in below}


def _bare(plan: Operator) -> dict[Address, int]:
    """The places in a plan where a column stands for itself."""
    found = {}
    for node in plan.within():
        for item in node.expressions():
            if item.bare:
                found[item.address] = item.number
        for place, number in enumerate(node.output):
            found[Address(node.index, "output", (place,))] = number
    return found
