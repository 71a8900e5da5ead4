"""How a derived view is maintained: by keys, or as a whole, and why.

Functions whose result depends on an order that the query does not define (`first`, `collect_list`
without a sort, a `row_number` over ties) are accepted: a recomputed key has one of the results that
the query allows, as its first computation had. To compare views with their query, sort.

Own columns: columns of a view that copy an input's columns, in all its rows.

Let `c` be columns of the result to which every path from every use of an input leads without a
join, each column the input's own. Input rows with other values of `c` do not contribute to the
result's rows with some given values: removing them can, by the claim of `lineage`, only change the
result for values that the removed rows have. For some values of `c`, the result can therefore be
computed from the input's rows with these values alone, and a change of only this input can be
traced to `c` without reading another input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from projections.incremental.analysis.lineage import JOINS, KNOWN, Lineage, UnreachableError
from projections.incremental.analysis.path import (
    Changed,
    Derived,
    Filtered,
    Matched,
    Table,
    Widened,
    steps,
    tables,
)
from projections.incremental.analysis.query_plan import Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from projections.incremental.analysis.path import Step
    from projections.incremental.analysis.query_plan import PlanNode

_LIMITS: Final = {
    "GlobalLimit": "a LIMIT over all rows",
    "LocalLimit": "a LIMIT over all rows",
    "Offset": "an OFFSET over all rows",
    "Tail": "the last rows of all",
    "Sample": "a random sample",
}
_CLOCKS: Final = frozenset(
    {
        *("CurrentTimestamp", "CurrentTimestampLike", "CurrentDate", "CurrentTime", "Now"),
        *("LocalTimestamp", "UnixTimestampNow", "CurrentBatchTimestamp", "CurrentUser"),
    }
)
_DICE: Final = frozenset(
    {
        *("Rand", "Randn", "Uniform", "RandStr", "Uuid", "Shuffle", "SparkPartitionID"),
        *("MonotonicallyIncreasingID", "InputFileName", "InputFileBlockStart"),
        *("InputFileBlockLength", "AssertTrue", "RaiseError"),
    }
)
_SUBQUERIES: Final = frozenset({"ScalarSubquery", "Exists", "InSubquery", "ListQuery"})


@dataclass(frozen=True, slots=True)
class UsedInput:
    """One use of an input in a query.

    Attributes:
        leaf: Number of its leaf operator.
        name: The input.
        paths: Paths from its changed rows to the columns by which the view is maintained.
    """

    leaf: int
    name: str
    paths: tuple[Step, ...]

    @property
    def passes(self) -> frozenset[int]:
        """Returns the other uses that its paths read."""
        return frozenset().union(*map(tables, self.paths))


@dataclass(frozen=True, slots=True)
class CopiedColumns:
    """Columns that a view copies unchanged from an input; see `own_columns`.

    Attributes:
        columns: The input's column for each of the view's.
        uses: Every use of the input, with its path to these columns.
    """

    columns: Mapping[str, str]
    uses: tuple[UsedInput, ...]


@dataclass(frozen=True, slots=True)
class Keyed:
    """The view is maintained by keys.

    Attributes:
        by: Columns of the result whose affected values are determined and recomputed: the keys,
            some of them, or other columns of the view.
        uses: Every use of an input.
        own: For each input, those of these columns that it provides unchanged, if any.
    """

    by: tuple[str, ...]
    uses: tuple[UsedInput, ...]
    own: Mapping[str, CopiedColumns] = field(default_factory=dict)

    def for_changes_of(self, name: str) -> Keyed:
        """Returns the strategy for a change of only one input: by the columns that are its own.

        Without own columns the strategy stays the same. With them, no other input need be read to
        determine the affected keys; but if other rows of the input have the same values, more keys
        are recomputed.
        """
        own = self.own.get(name)
        return self if own is None else Keyed(tuple(own.columns), own.uses, self.own)


@dataclass(frozen=True, slots=True)
class Whole:
    """The view is computed as a whole and compared with the stored rows.

    Attributes:
        reason: Why, in plain words.
    """

    reason: str


Strategy = Keyed | Whole


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a derived view for `view explain`.

    Attributes:
        inputs: Names of the inputs.
        keys: Columns that identify a row.
        strategy: `keyed` or `whole`.
        by: Columns by which it is maintained; none if as a whole.
        paths: For each input, how its changes lead to those columns, one line per path.
        reason: Why it is computed as a whole; None if it is not.
        near: Columns of inputs by which rows far from a change are skipped.
    """

    inputs: tuple[str, ...]
    keys: tuple[str, ...]
    strategy: str
    by: tuple[str, ...] = ()
    paths: Mapping[str, tuple[str, ...]] | None = None
    reason: str | None = None
    near: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnalysedQuery:
    """The analysis of a view's query.

    Attributes:
        plan: Its optimised plan.
        written: Class names in the plan as written, with all subqueries.
        leaves: Input of each leaf.
        columns: The result's columns and their numbers, in order.
        names: Columns of the inputs by their numbers, for people.
    """

    plan: PlanNode
    written: AbstractSet[str]
    leaves: Mapping[int, str]
    columns: Mapping[str, int]
    names: Mapping[int, str]


def choose(query: AnalysedQuery, keys: Sequence[str]) -> Strategy:
    """Chooses how a view is maintained."""
    reason = _obstacle(query)
    if reason is not None:
        return Whole(reason)
    lineage = Lineage(query.plan, query.names)

    def uses(by: Sequence[str]) -> tuple[UsedInput, ...]:
        wanted = frozenset(query.columns[name] for name in by)
        return tuple(
            UsedInput(leaf, name, lineage.paths(wanted, leaf))
            for leaf, name in query.leaves.items()
        )

    def kept(by: tuple[str, ...]) -> Keyed:
        return Keyed(by, uses(by), _own(lineage, query, by))

    try:
        return kept(tuple(keys))
    except UnreachableError as error:
        reason = str(error)
    for by in _substitutes(lineage, query, keys):
        try:
            return kept(by)
        except UnreachableError:
            continue
    return Whole(reason)


def ordered(uses: Iterable[UsedInput]) -> list[UsedInput]:
    """Sorts changed uses: a use comes after those that its paths read.

    The others are then read in their new version, and no old version is needed. If two read each
    other, the plan's order is kept; every order is correct.
    """
    waiting = list(uses)
    done: list[UsedInput] = []
    while waiting:
        leaves = {use.leaf for use in waiting}
        free = (use for use in waiting if not use.passes & (leaves - {use.leaf}))
        following = next(free, waiting[0])
        waiting.remove(following)
        done.append(following)
    return done


def explain(strategy: Strategy, inputs: Iterable[str], keys: Iterable[str]) -> Explanation:
    """Describes a view's strategy."""
    if isinstance(strategy, Whole):
        return Explanation(tuple(inputs), tuple(keys), "whole", reason=strategy.reason)
    paths: dict[str, tuple[str, ...]] = {}
    for use in strategy.uses:
        lines = (*paths.get(use.name, ()), *map(_hops, use.paths))
        paths[use.name] = tuple(dict.fromkeys(lines))
    return Explanation(tuple(inputs), tuple(keys), "keyed", by=strategy.by, paths=paths)


def _hops(path: Step) -> str:
    hops = [
        " and ".join(pair.text for pair in step.pairs)
        for step in steps(path)
        if isinstance(step, Matched)
    ]
    return ", then ".join(hops) or "its own columns"


def _obstacle(query: AnalysedQuery) -> str | None:
    """Returns why the plan cannot be followed for any keys; None if it can."""
    if query.written & _CLOCKS:
        return "it asks for the current time or user, so its rows change without any input"
    if query.written & _DICE:
        return f"its rows depend on more than its inputs: {_spelled(query.written & _DICE)}"
    obstacles = (_obstacle_at(node, query.leaves) for node in query.plan.within())
    return next((reason for reason in obstacles if reason), None)


def _obstacle_at(node: PlanNode, leaves: Mapping[int, str]) -> str | None:
    if node.kind in _LIMITS:
        return _LIMITS[node.kind]
    if node.kind not in KNOWN or (node.kind == "Join" and node.join_type not in JOINS):
        return f"the operator {node.kind} {node.join_type}".rstrip() + " is not followed"
    if node.kind == "LogicalRDD" and node.index not in leaves:
        return "it reads something besides its inputs"
    for item in node.expressions():
        if item.kind in _SUBQUERIES:
            return "it compares with a subquery over all rows of an input"
        if not item.deterministic:
            return f"the function {item.name} is not marked deterministic"
    return None


def _own(lineage: Lineage, query: AnalysedQuery, by: Sequence[str]) -> dict[str, CopiedColumns]:
    copied = {}
    for name in dict.fromkeys(query.leaves.values()):
        leaves = [leaf for leaf, of in query.leaves.items() if of == name]
        each = [_taken_over(lineage, query, by, leaf) for leaf in leaves]
        columns = dict(set.intersection(*(set(one.items()) for one in each)))
        if columns:
            columns = {column: columns[column] for column in by if column in columns}
            wanted = frozenset(query.columns[column] for column in columns)
            uses = tuple(UsedInput(leaf, name, lineage.paths(wanted, leaf)) for leaf in leaves)
            copied[name] = CopiedColumns(columns, uses)
    return copied


def _taken_over(
    lineage: Lineage, query: AnalysedQuery, by: Sequence[str], leaf: int
) -> dict[str, str]:
    """Returns the columns of the result that are copies of a leaf's columns on every path."""

    def among(names: Sequence[str]) -> dict[str, str]:
        wanted = frozenset(query.columns[name] for name in names)
        try:
            paths = lineage.paths(wanted, leaf)
        except UnreachableError:
            return {}
        each = [own_columns(query.plan, path) for path in paths] or [{}]
        copies = {}
        for name in names:
            first, *others = [own.get(query.columns[name]) for own in each]
            if first is not None and all(other == first for other in others):
                copies[name] = query.names[first].removeprefix(f"{query.leaves[leaf]}.")
        return copies

    names = [name for name in by if among([name])]
    together = among(names) if names else {}
    return together if list(together) == names else {}


def _spelled(kinds: Iterable[str]) -> str:
    return ", ".join(sorted(kind.lower() for kind in kinds))


def _substitutes(
    lineage: Lineage, query: AnalysedQuery, keys: Sequence[str]
) -> Iterable[tuple[str, ...]]:
    """Returns columns to use instead of the keys: usable keys, otherwise any usable column."""

    def reached(name: str) -> bool:
        try:
            paths_by_leaf = [
                lineage.paths(frozenset({query.columns[name]}), leaf) for leaf in query.leaves
            ]
        except UnreachableError:
            return False
        # a constant can be reached as well, but distinguishes no rows
        read = (step for path in paths_by_leaf for one in path for step in steps(one))
        return any(isinstance(step, Changed | Table) and step.columns for step in read)

    part = tuple(name for name in keys if reached(name))
    if part:
        yield part
        yield from ((name,) for name in part)
    yield from ((name,) for name in query.columns if name not in keys and reached(name))


def own_columns(plan: PlanNode, path: Step) -> dict[int, int]:
    """Returns the columns that a path copies from its changed rows.

    Returns:
        The leaf's column number for each column number; empty if the path joins.
    """
    return _owned(_bare(plan), path)


def _owned(bare: Mapping[Address, int], path: Step) -> dict[int, int]:
    if isinstance(path, Changed):
        return {number: number for number in path.columns}
    if isinstance(path, Filtered | Widened):
        return _owned(bare, path.child)
    if not isinstance(path, Derived):
        return {}
    below = _owned(bare, path.child)
    made = {
        number: bare[source]
        for number, source in path.columns
        if source is not None and source in bare
    }
    return {number: below[source] for number, source in made.items() if source in below}


def _bare(plan: PlanNode) -> dict[Address, int]:
    """Yields the addresses in a plan where a column occurs without an expression."""
    numbers = {}
    for node in plan.within():
        for item in node.expressions():
            if item.bare:
                numbers[item.address] = item.number
        for place, number in enumerate(node.output):
            numbers[Address(node.index, "output", (place,))] = number
    return numbers
