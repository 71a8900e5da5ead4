"""Pruning: which input rows a view need not read for a change, based on column distances.

For example, a click counts for a search within an hour. If both tables are roughly in order of
time, a change need not cost more as searches and clicks accumulate: the rows near the changed ones
suffice.

Definitions. An input `a`, used once, is an anchor if some of the columns by which the view is
maintained identify a row of `a` and are copied unchanged from it (`own_columns`), on a way to the
result on which no join puts NULL in place of `a`. A link joins another input `y`, also used once,
directly with `a`, with only filters and projections before the join, on a condition that bounds a
column `u` of `y` by a column `t` of `a`: `least <= u - t <= most`.

Claim. Let only `a` and inputs linked to `t` have changed. Let `T` contain the values of `t` in
changed rows of `a`, and all values that a link allows for the `u` of a changed row of its `y`; let
`U` contain all values that the link allows for a `t` in `T`. If only rows of `a` with `t` in `T`
are read, and of each `y` only rows with `u` in `U`, then

1. the paths find every affected key, and
2. the rows of the result for the keys `K` are the same, where `K` are the keys that the paths find,
   without those from changes of `y` that no row of `a` in `T` has, before or after a change.

Proof of 1. A pair of rows that differs because a row of `y` changed has a row of `a` for which the
whole condition holds: its `t` is in `T`. A pair that differs because a row of `a` changed has its
`t` in `T`, and its row of `y` has its `u` in `U`. The rows that are not read are therefore in no
pair that a path must find. By the first of these sentences, a key without a row of `a` in `T` is
not affected.

Proof of 2. First, every row of `a` with the columns of a key in `K` is in `T`. There is at most one
such row, since the columns identify it. If it changed, its present state is among the changed rows.
If not, a path gave the key with this unchanged row in `T`. Now remove the rows that are not read,
one input after the other. Each removal is a change, which affects only keys that its paths find. A
path of removed rows of `y` passes through the join with `a` (rows of `y` without a match are not in
its result), and there the whole condition can be applied, as `lineage` states: a key in `K` that it
finds has a row of `a` in `T`, so the row of `y` would be in `U`. A path of a removed row of `a`
gives that row's own columns, which are not in `K`.

A row with NULL in `t` counts as in `T` if a changed row has NULL there: it concerns only its own
key, and has no match. If only `a` has changed, the claim holds for any column `t` of `a`, as the
case without links.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from projections.incremental.analysis.query_plan import Expression, PlanNode
    from projections.incremental.analysis.strategy import AnalysedQuery, Keyed

TIME: Final = "timestamp"
TEXT: Final = "string"
NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})

_DAY_US: Final = 86_400_000_000
_CLOCKS_CHANGE_US: Final = 2 * _DAY_US
"""More than any place moves its clocks: calendar days can differ from 24 hours by this."""
_PASSED: Final = frozenset({"Project", "Filter", "SubqueryAlias"})
_LEFT_KEPT: Final = frozenset({"LeftOuter", "LeftSingle", "LeftSemi", "LeftAnti", "ExistenceJoin"})
_BOTH_KEPT: Final = frozenset({"Inner", "Cross"})
_LATER: Final = frozenset({"GreaterThan", "GreaterThanOrEqual"})
_EARLIER: Final = frozenset({"LessThan", "LessThanOrEqual"})
_EXACT: Final = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")
"""Types of intervals that are a fixed number of microseconds, without months."""


@dataclass(frozen=True, slots=True)
class ColumnDistance:
    """The distance of a column of another input from one of the anchor, in joined rows.

    Attributes:
        column: The anchor's column.
        name: The other input.
        other: Its column.
        least: Least difference `other - column`, in microseconds for times; None if unbounded.
        most: Greatest difference; None if unbounded.
        equal: Whether the values must be equal; their type then need not be ordered.
    """

    column: str
    name: str
    other: str
    least: int | None
    most: int | None
    equal: bool = False


@dataclass(frozen=True, slots=True)
class Anchor:
    """An input with at most one row for each row of the view, and never NULL in its place.

    Attributes:
        name: The input.
        columns: Its column for each of the view's columns.
        ordered: Its time columns, and number columns that occur in links.
        links: Inputs joined with it by column distances.
    """

    name: str
    columns: Mapping[str, str]
    ordered: tuple[str, ...]
    links: tuple[ColumnDistance, ...]

    def linked(self, column: str, names: Iterable[str]) -> bool:
        """Returns whether all these inputs are linked to a column; the anchor itself is."""
        near = {link.name for link in self.links if link.column == column} | {self.name}
        return near.issuperset(names)


def anchors(
    query: AnalysedQuery, strategy: Keyed, kinds: Mapping[str, Mapping[str, str]]
) -> tuple[Anchor, ...]:
    """Finds the anchors of a view whose copied columns may identify their rows.

    Args:
        query: The view's query.
        strategy: How the view is maintained.
        kinds: Spark's types of the columns, by input.
    """
    used = list(query.leaves.values())
    alone = {leaf: name for leaf, name in query.leaves.items() if used.count(name) == 1}
    usable = []
    for leaf, name in alone.items():
        own = strategy.own.get(name)
        way = list(_way(query.plan, leaf))
        if own is None or not all(_keeps(node, place) for node, place in way):
            continue
        links = tuple(_links(query, way, leaf, alone, kinds))
        times = [column for column, kind in kinds[name].items() if kind == TIME]
        numbers = [each.column for each in links if kinds[name][each.column] in NUMBERS]
        ordered = tuple(dict.fromkeys([*times, *numbers]))
        usable.append(Anchor(name, dict(own.columns), ordered, links))
    return tuple(usable)


def identified(
    anchors: Iterable[Anchor], by: Iterable[str], identities: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[Anchor, dict[str, str]]]:
    """Yields the anchors whose rows a key identifies, with their columns in the key.

    Args:
        anchors: The anchors of a view.
        by: The columns by which it is maintained.
        identities: Columns that identify an input's rows, where known.
    """
    wanted = set(by)
    for anchor in anchors:
        columns = {name: of for name, of in anchor.columns.items() if name in wanted}
        known = identities.get(anchor.name, ())
        if known and set(known) <= set(columns.values()):
            yield anchor, columns


def columns_in_order(
    anchors: Iterable[Anchor], by: Iterable[str], identities: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Returns the columns, as `input.column`, by which distant rows are skipped."""
    columns = [
        place
        for anchor, _ in identified(anchors, by, identities)
        for place in (
            *((anchor.name, column) for column in anchor.ordered),
            *((link.name, link.other) for link in anchor.links),
        )
    ]
    return tuple(f"{name}.{column}" for name, column in dict.fromkeys(columns))


def _way(node: PlanNode, leaf: int) -> Iterator[tuple[PlanNode, int]]:
    """Yields the operators from one down to a leaf, each with the index of its child."""
    for place, child in enumerate(node.children):
        if leaf in child.leaves:
            yield node, place
            yield from _way(child, leaf)


def _keeps(node: PlanNode, place: int) -> bool:
    """Returns whether an operator never replaces a row of one of its children by NULL."""
    if node.kind != "Join" or node.join_type in _BOTH_KEPT:
        return True
    if node.join_type in _LEFT_KEPT:
        return place == 0
    return node.join_type == "RightOuter" and place == 1


def _links(
    query: AnalysedQuery,
    way: Sequence[tuple[PlanNode, int]],
    leaf: int,
    alone: Mapping[int, str],
    kinds: Mapping[str, Mapping[str, str]],
) -> Iterator[ColumnDistance]:
    nodes = {node.index: node for node in query.plan.within()}
    for depth, (node, place) in enumerate(way):
        if node.kind != "Join" or any(
            each.kind not in _PASSED | {"Join"} for each, _ in way[depth + 1 :]
        ):
            continue
        other = _single(node.children[1 - place])
        if other is None or other.index not in alone:
            continue
        name, its_name = alone[leaf], alone[other.index]
        mine = _columns(query, nodes[leaf], name, kinds[name])
        its = _columns(query, other, its_name, kinds[its_name])
        for (one, two), (least, most) in _bounds(node, mine, its).items():
            equal = (least, most) == (0, 0)
            yield ColumnDistance(mine[one][0], its_name, its[two][0], least, most, equal)


def _single(node: PlanNode) -> PlanNode | None:
    """Returns the leaf whose rows an operator passes on one by one; None if there is none."""
    while node.children:
        if node.kind not in _PASSED:
            return None
        (node,) = node.children
    return node


def _columns(
    query: AnalysedQuery, leaf: PlanNode, name: str, kinds: Mapping[str, str]
) -> dict[int, tuple[str, str]]:
    """Returns the columns of a leaf with derivable values: their names and types."""
    called = {number: query.names[number].removeprefix(f"{name}.") for number in leaf.output}
    return {
        number: (column, kind)
        for number, column in called.items()
        if (kind := kinds[column]) in NUMBERS | {TIME, TEXT}
    }


def _bounds(
    node: PlanNode,
    mine: Mapping[int, tuple[str, str]],
    its: Mapping[int, tuple[str, str]],
) -> dict[tuple[int, int], tuple[int | None, int | None]]:
    """Returns the least and greatest distance for each pair of an anchor's and another's column.

    Ignoring a part of the condition only widens the range.
    """
    distances: dict[tuple[int, int], tuple[int | None, int | None]] = {}
    for condition in node.part("condition"):
        for item in condition.conjuncts():
            for bound in _compared(item):
                distance: tuple[int | None, int | None]
                if bound.lesser in mine and bound.greater in its:  # greater - lesser >= by
                    pair, distance = (bound.lesser, bound.greater), (bound.by, None)
                elif bound.lesser in its and bound.greater in mine:
                    pair, distance = (bound.greater, bound.lesser), (None, -bound.by)
                else:
                    continue
                if _alike(item, mine[pair[0]][1], its[pair[1]][1]):
                    distances[pair] = _both(distances.get(pair, (None, None)), distance)
    return distances


def _alike(item: Expression, mine: str, its: str) -> bool:
    """Returns whether a comparison is of two times, two numbers, or two equal texts."""
    if TEXT in {mine, its}:
        return mine == its and item.kind == "EqualTo"
    return (mine == TIME) is (its == TIME)


def _both(
    one: tuple[int | None, int | None], two: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    leasts = [each for each in (one[0], two[0]) if each is not None]
    mosts = [each for each in (one[1], two[1]) if each is not None]
    return max(leasts, default=None), min(mosts, default=None)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A bound: one column exceeds another by at least so much."""

    lesser: int
    greater: int
    by: int


def _compared(item: Expression) -> Iterator[_Bound]:
    """Yields the bounds that a comparison implies for two columns."""
    if item.kind not in _LATER | _EARLIER | {"EqualTo"}:
        return
    one, two = map(_moved, item.children)
    if one is None or two is None:
        return
    (left, left_by, left_slack), (right, right_by, right_slack) = one, two
    slack = left_slack + right_slack
    if item.kind in _LATER | {"EqualTo"}:  # left + left_by >= right + right_by
        yield _Bound(right, left, right_by - left_by - slack)
    if item.kind in _EARLIER | {"EqualTo"}:
        yield _Bound(left, right, left_by - right_by - slack)


def _moved(item: Expression) -> tuple[int, int, int] | None:
    """Returns a column, the number added to it, and its tolerance; None for other terms."""
    if item.bare:
        return item.number, 0, 0
    if item.kind != "TimestampAddInterval":
        return None
    moved, added = _moved(item.children[0]), item.children[1]
    if moved is None or added.kind != "Literal" or not _EXACT.fullmatch(added.literal_type):
        return None
    number, by, slack = moved
    interval_us = int(added.literal)
    days = abs(interval_us) >= _DAY_US
    return number, by + interval_us, slack + (_CLOCKS_CHANGE_US if days else 0)
