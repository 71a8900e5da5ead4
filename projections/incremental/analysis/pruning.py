"""Nearness: which rows of its inputs a view need not read for what changed, by columns in order.

A click counts for a search within an hour. So what a change of either costs need not grow with all
the searches and clicks that there are, if both tables are roughly in order of time: those near the
changed rows are enough.

What is promised. Let an input `a` be used once, and let some of the columns by which the view is
kept be columns that identify a row of `a`, adopted as they are (`own_columns`), on a way to the
result on which no join ever puts NULL in the place of `a`: it is an anchor. Let another input `y`
be used once, joined with `a` right there, with nothing but filters and projections before, on a
condition that bounds a column `u` of `y` by a column `t` of `a`: `least <= u - t <= most`. That is
a link. Let `a` and such `y` have changed, and nothing else that is not linked to `t`. Let `T` be
the values of `t` in changed rows of `a`, and those that are as far from `u` in a changed row of `y`
as the link allows; `U` those that are so far from `T`. Then with rows of `a` only that have their
`t` in `T`, and of each `y` only those that have their `u` in `U`,

1. paths find every key that is affected, and
2. the rows of the result for the keys `K` are the same, `K` being what the paths find, without
   those of changes of `y` that no row of `a` in `T` has, as it is or was changed.

Proof of 1. A pair that differs because a row of `y` changed has a row of `a` for which the whole
condition holds: its `t` is in `T`. One that differs as a row of `a` changed has its `t` in `T`, and
its row of `y` has its `u` in `U`. So what is not read is in no pair that a path need find, and by
the first of these a key without a row of `a` in `T` is not affected.

Proof of 2. First, every row of `a` that has the columns of a key in `K` is in `T`: it is one at
most, as these identify it. If it changed, as it is now is among its changed rows. If not, the key
was found with it in `T`, as it is. Now take the other rows away, of one input after the other: that
is a change, which affects no more keys than its paths find. A path of rows of `y` passes through
the join with `a` (where `y` has no match nothing is in its place), and there the whole condition
may be asked, as `lineage` says: a key in `K` that it finds has a row of `a` in `T`, and so the row
of `y` would be in `U`. A path of a row of `a` gives its own columns, and these are not in `K`.

A row whose `t` is NULL is in `T` if a changed row's is: it is of its key, and has no match. That it
may be any column of `a`, if `a` alone has changed, is the same with no link.
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
"""Further than a place moves its clocks: where days are added, it is they that are counted."""
_PASSED: Final = frozenset({"Project", "Filter", "SubqueryAlias"})
_LEFT_KEPT: Final = frozenset({"LeftOuter", "LeftSingle", "LeftSemi", "LeftAnti", "ExistenceJoin"})
_BOTH_KEPT: Final = frozenset({"Inner", "Cross"})
_LATER: Final = frozenset({"GreaterThan", "GreaterThanOrEqual"})
_EARLIER: Final = frozenset({"LessThan", "LessThanOrEqual"})
_EXACT: Final = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")
"""Types of intervals that are so many microseconds, and no months."""


@dataclass(frozen=True, slots=True)
class ColumnDistance:
    """How far a column of another input is from one of the anchor, in rows that are joined.

    Attributes:
        column: The anchor's column.
        name: The other input.
        other: Its column.
        least: The least that this is more by, in microseconds if they are times; None without end.
        most: The most.
        equal: Whether they are the same value, which then need not be in any order.
    """

    column: str
    name: str
    other: str
    least: int | None
    most: int | None
    equal: bool = False


@dataclass(frozen=True, slots=True)
class Anchor:
    """An input of which each row of the view may have one row, and never none.

    Attributes:
        name: The input.
        columns: The input's column, by the view's column.
        ordered: Its columns of times, and of numbers that occur in links.
        links: Inputs joined with it by near values.
    """

    name: str
    columns: Mapping[str, str]
    ordered: tuple[str, ...]
    links: tuple[ColumnDistance, ...]

    def linked(self, column: str, names: Iterable[str]) -> bool:
        """Whether all these inputs are linked to a column; the anchor itself is."""
        near = {link.name for link in self.links if link.column == column} | {self.name}
        return near.issuperset(names)


def anchors(
    query: AnalysedQuery, strategy: Keyed, kinds: Mapping[str, Mapping[str, str]]
) -> tuple[Anchor, ...]:
    """Finds the anchors of a view, if columns that they have identify their rows.

    Args:
        query: The view's query.
        strategy: How the view is maintained.
        kinds: Spark's types of the columns, by input.
    """
    used = list(query.leaves.values())
    alone = {leaf: name for leaf, name in query.leaves.items() if used.count(name) == 1}
    found = []
    for leaf, name in alone.items():
        own = strategy.own.get(name)
        way = list(_way(query.plan, leaf))
        if own is None or not all(_keeps(node, place) for node, place in way):
            continue
        links = tuple(_links(query, way, leaf, alone, kinds))
        times = [column for column, kind in kinds[name].items() if kind == TIME]
        numbers = [each.column for each in links if kinds[name][each.column] in NUMBERS]
        ordered = tuple(dict.fromkeys([*times, *numbers]))
        found.append(Anchor(name, dict(own.columns), ordered, links))
    return tuple(found)


def identified(
    anchors: Iterable[Anchor], by: Iterable[str], identities: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[Anchor, dict[str, str]]]:
    """Yields the anchors of which a key has what identifies a row, with the columns that it has.

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
    """Names the columns, each behind its input's name, by which what is not near is passed over."""
    found = [
        place
        for anchor, _ in identified(anchors, by, identities)
        for place in (
            *((anchor.name, column) for column in anchor.ordered),
            *((link.name, link.other) for link in anchor.links),
        )
    ]
    return tuple(f"{name}.{column}" for name, column in dict.fromkeys(found))


def _way(node: PlanNode, leaf: int) -> Iterator[tuple[PlanNode, int]]:
    """The operators from one down to a leaf, each with the place of the child on the way."""
    for place, child in enumerate(node.children):
        if leaf in child.leaves:
            yield node, place
            yield from _way(child, leaf)


def _keeps(node: PlanNode, place: int) -> bool:
    """Whether an operator never returns NULL for a row of one of its children."""
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
    """The leaf whose rows an operator has, each by itself; None if it is not so."""
    while node.children:
        if node.kind not in _PASSED:
            return None
        (node,) = node.children
    return node


def _columns(
    query: AnalysedQuery, leaf: PlanNode, name: str, kinds: Mapping[str, str]
) -> dict[int, tuple[str, str]]:
    """Returns the columns of a leaf whose values can be derived: their names and types."""
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
    """By a column of the anchor and one of the other: how much more this is at least, and at most.

    What is left out of a condition only makes that wider.
    """
    found: dict[tuple[int, int], tuple[int | None, int | None]] = {}
    for condition in node.part("condition"):
        for item in condition.conjuncts():
            for bound in _compared(item):
                said: tuple[int | None, int | None]
                if bound.lesser in mine and bound.greater in its:  # greater - lesser >= by
                    pair, said = (bound.lesser, bound.greater), (bound.by, None)
                elif bound.lesser in its and bound.greater in mine:
                    pair, said = (bound.greater, bound.lesser), (None, -bound.by)
                else:
                    continue
                if _alike(item, mine[pair[0]][1], its[pair[1]][1]):
                    found[pair] = _both(found.get(pair, (None, None)), said)
    return found


def _alike(item: Expression, mine: str, its: str) -> bool:
    """Whether a comparison is of two times, two numbers, or two texts that are the same."""
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
    """One column is more than another by at least so much."""

    lesser: int
    greater: int
    by: int


def _compared(item: Expression) -> Iterator[_Bound]:
    """What a comparison says of two columns; nothing where it is of anything else."""
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
    """A column, what is added to it, and by how much that may differ; None if it is not one."""
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
