"""How a derived view is maintained: by its keys, or completely, and why.

Functions whose result depends on an order that the query does not define (`first`, `collect_list`
without a sort, a `row_number` over ties) are accepted: a key computed again has one of the results
that the query allows, as its first computation had. To compare views with their query, sort.

Which of a view's columns are copies of an input's columns, for all its rows.

Let `c` be columns of the result to which every path from every use of an input leads by itself: no
join on the way, each column an input's own. Rows of the input whose values are not among some
values of `c` have no part in the result's rows for those: take them away, and by what `lineage`
promises the rows of the result can differ only for values that the rows taken away have. So for
some values of `c`, the result can be computed from the input's rows with these values alone, and a
change of only this input can be followed to `c` without looking at another.
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
        leaf: The operator that stands for it.
        name: The input.
        paths: What leads from its changed rows to the columns by which the view is kept.
    """

    leaf: int
    name: str
    paths: tuple[Step, ...]

    @property
    def passes(self) -> frozenset[int]:
        """The other uses that its paths pass through."""
        return frozenset().union(*map(tables, self.paths))


@dataclass(frozen=True, slots=True)
class Own:
    """Columns that a view copies unchanged from an input; see `own_columns`.

    Attributes:
        columns: By the view's column, the input's.
        uses: Every use of the input, with the path to these columns.
    """

    columns: Mapping[str, str]
    uses: tuple[UsedInput, ...]


@dataclass(frozen=True, slots=True)
class Keyed:
    """The view is kept key by key.

    Attributes:
        by: Columns of the result by whose values what a change affects is found and computed
            again: the keys, a part of them, or a column that is in the view beside them.
        uses: Every use of an input.
        own: By input, those of these columns that it gives as they are, where there are any.
    """

    by: tuple[str, ...]
    uses: tuple[UsedInput, ...]
    own: Mapping[str, Own] = field(default_factory=dict)

    def alone(self, name: str) -> Keyed:
        """Returns how the view is kept if one input changes and no other: by what is its own.

        Without its own columns it is kept as ever. Nothing else need be read to find what is
        affected; but where other rows of the input have the same values, more is.
        """
        own = self.own.get(name)
        return self if own is None else Keyed(tuple(own.columns), own.uses, self.own)


@dataclass(frozen=True, slots=True)
class Whole:
    """The view is computed as a whole and compared with what is stored.

    Attributes:
        reason: Why, in plain words.
    """

    reason: str


Strategy = Keyed | Whole


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `view explain` shows of a derived view.

    Attributes:
        inputs: Their names.
        keys: Columns that identify a row.
        strategy: `keyed` or `whole`.
        by: Columns by which it is kept; none if as a whole.
        paths: By input, how its changes lead to those columns, one line for each way.
        reason: Why it is computed as a whole; None if it is not.
        near: Columns of inputs by which rows are passed over that are not near a change.
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
    """What is known of a view's query.

    Attributes:
        plan: Its plan, optimised.
        written: Names of the classes in the plan as it was written, with all subqueries.
        leaves: Input of each leaf that reads one.
        columns: The result's columns and their numbers, in order.
        names: Columns of the inputs by their numbers, for people.
    """

    plan: PlanNode
    written: AbstractSet[str]
    leaves: Mapping[int, str]
    columns: Mapping[str, int]
    names: Mapping[int, str]


def choose(query: AnalysedQuery, keys: Sequence[str]) -> Strategy:
    """Chooses how a view is kept."""
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
    """Orders uses whose inputs changed: a use that passes through another comes after it.

    It then finds the other in its new version, and no old version need be read. Where two pass
    through each other, the plan's order is kept; every order is right.
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
    """Returns what there is to say about a view's strategy."""
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
    """What keeps the whole plan from being followed, whatever the keys are."""
    if query.written & _CLOCKS:
        return "it asks for the current time or user, so its rows change without any input"
    if query.written & _DICE:
        return f"its rows depend on more than its inputs: {_spelled(query.written & _DICE)}"
    found = (_obstacle_at(node, query.leaves) for node in query.plan.within())
    return next((reason for reason in found if reason), None)


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


def _own(lineage: Lineage, query: AnalysedQuery, by: Sequence[str]) -> dict[str, Own]:
    found = {}
    for name in dict.fromkeys(query.leaves.values()):
        leaves = [leaf for leaf, of in query.leaves.items() if of == name]
        each = [_taken_over(lineage, query, by, leaf) for leaf in leaves]
        columns = dict(set.intersection(*(set(one.items()) for one in each)))
        if columns:
            columns = {column: columns[column] for column in by if column in columns}
            wanted = frozenset(query.columns[column] for column in columns)
            uses = tuple(UsedInput(leaf, name, lineage.paths(wanted, leaf)) for leaf in leaves)
            found[name] = Own(columns, uses)
    return found


def _taken_over(
    lineage: Lineage, query: AnalysedQuery, by: Sequence[str], leaf: int
) -> dict[str, str]:
    """Columns of the result that are columns of a leaf whatever path is taken, and which."""

    def among(names: Sequence[str]) -> dict[str, str]:
        wanted = frozenset(query.columns[name] for name in names)
        try:
            paths = lineage.paths(wanted, leaf)
        except UnreachableError:
            return {}
        each = [own_columns(query.plan, path) for path in paths] or [{}]
        found = {}
        for name in names:
            first, *others = [own.get(query.columns[name]) for own in each]
            if first is not None and all(other == first for other in others):
                found[name] = query.names[first].removeprefix(f"{query.leaves[leaf]}.")
        return found

    names = [name for name in by if among([name])]
    together = among(names) if names else {}
    return together if list(together) == names else {}


def _spelled(kinds: Iterable[str]) -> str:
    return ", ".join(sorted(kind.lower() for kind in kinds))


def _substitutes(
    lineage: Lineage, query: AnalysedQuery, keys: Sequence[str]
) -> Iterable[tuple[str, ...]]:
    """Columns that may do instead of the keys: those of the keys that do, then any other one."""

    def reached(name: str) -> bool:
        try:
            found = [lineage.paths(frozenset({query.columns[name]}), leaf) for leaf in query.leaves]
        except UnreachableError:
            return False
        # a constant can be reached as well, and would not tell one row from another
        read = (step for path in found for one in path for step in steps(one))
        return any(isinstance(step, Changed | Table) and step.columns for step in read)

    part = tuple(name for name in keys if reached(name))
    if part:
        yield part
        yield from ((name,) for name in part)
    yield from ((name,) for name in query.columns if name not in keys and reached(name))


def own_columns(plan: PlanNode, path: Step) -> dict[int, int]:
    """Returns columns that a path copies from its changed rows.

    Returns:
        The leaf's column number, by column number; empty where the path joins.
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
    """The places in a plan where a column stands for itself."""
    found = {}
    for node in plan.within():
        for item in node.expressions():
            if item.bare:
                found[item.address] = item.number
        for place, number in enumerate(node.output):
            found[Address(node.index, "output", (place,))] = number
    return found
