"""Lineage: paths from the changed rows of an input to the columns that address a view's rows.

Claim. A query has leaves, one for each use of an input; an input that is used twice has two. Let
`columns` be columns of the query's result, and `old` and `new` two versions of all inputs. Every
value of `columns` for which the rows of the result differ is among the values that the paths give,
run as follows: the leaves whose inputs changed are in some order; the path of a leaf begins at its
changed rows, before and after, and reads every other leaf in the version `new` if it did not change
or comes earlier in the order, else in the version `old`.

Proof, first part: one leaf after the other. Let the leaves change one at a time in that order, and
compute the result after each. If the rows for a value differ between the first result and the last,
they differ in one of these steps. In that step one leaf changes, and all others are exactly in the
version in which its path reads them. It is therefore enough to show: if only leaf `x` changes, the
path of `x` misses nothing. No reader ever sees an intermediate state, so it need not be consistent.
Whether two joined tables change at once or a row moves from key to key does not matter: each step
has only one change, and a moved row is in it twice, as it was and as it is.

Proof, second part: one leaf changes. By induction over the operators, for every set `c` of an
operator's columns that `paths` accepts: if the rows with one value of `c` differ (as a bag), the
paths give that value. And `rows`: a path through an unchanged operator finds all its rows, or more.

- *Leaf `x`.* A row that differs is a changed row.
- *Project, Filter, Sort, Union, Expand.* They treat each row by itself. A row that differs above
  comes from a row that differs below, with the same columns or those they are computed from (for
  NULL as for any value). A filter is followed right above a leaf, elsewhere dropped, which only
  adds.
- *Inner join, `x` on the left.* The right side R is as it was. A result that differs is a pair (l,
  r) with r in R for which the number of rows l differs; induction gives l, on the columns wanted
  and those of the equalities; r has equal values there, and the join gives it. Other conditions are
  dropped, which only adds. If no column of R is wanted, it need not be joined. A wanted column of R
  that an equality gives is taken from l.
- *Left outer join.* Pairs (l, r) and rows (l, NULL) may differ. `x` on the left: l differs;
  the value is that of the pair, or that with NULL for R's columns. `x` on the right: l is as it was
  and a matching r differs; l's results are (l, r) and (l, NULL). Both are given, whether they exist
  or not. Right outer: the mirror image. Full outer: also (NULL, r), where a match l came or went.
- *Semi, anti, existence join.* `x` on the left: l differs. On the right: the answer for l differs
  only if a matching r differs, and the join gives l.
- *Aggregate, Distinct.* A column of the result without an aggregate function is a function of the
  group, so the rows of one value of it are whole groups, computed from the rows below that have
  this value, and if those do not differ the groups do not. Other columns are not accepted.
- *Window.* As an aggregate; accepted are the columns that the window is partitioned by.
- *Generate, Python functions.* They treat each row by itself, as a projection does: the columns
  that they add are computed again from the rows below that differ. Functions that are not marked
  deterministic are not followed at all.

A join without an equality that can be followed, where one would be needed, is not accepted, nor is
any operator not named here. Then the view is computed as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from projections.incremental.analysis.path import (
    Changed,
    Derived,
    Filtered,
    Matched,
    Pair,
    Table,
    Widened,
)
from projections.incremental.analysis.query_plan import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from projections.incremental.analysis.path import Step
    from projections.incremental.analysis.query_plan import Expression, PlanNode

PATHS_MAX: Final = 64
"""Most paths of one use: each outer join can double them, and each costs Spark planning.
"""

_TRANSPARENT: Final = frozenset(
    {
        *("Sort", "SubqueryAlias", "View", "Repartition", "RepartitionByExpression"),
        *("RebalancePartitions", "ResolvedHint", "CollectMetrics", "Filter", "Distinct"),
    }
)
_MAKING: Final = ("generator", "udfs")
"""Parts of operators that widen rows: the inputs of the added columns."""

_CONSTANT: Final = frozenset({"LocalRelation", "OneRowRelation", "Range"})
_WINDOWS: Final = frozenset({"Window", "WindowGroupLimit"})
_ONE_SIDED: Final = frozenset({"LeftSemi", "LeftAnti", "ExistenceJoin"})
_FULL: Final = frozenset({"FullOuter"})
_LEFT: Final = frozenset({"LeftOuter", "LeftSingle"})
_INNER: Final = frozenset({"Inner", "Cross"})
JOINS: Final = _ONE_SIDED | _FULL | _LEFT | _INNER | {"RightOuter"}
Columns = frozenset[int]


class UnreachableError(Exception):
    """Columns cannot be reached; the text names the operator in the way."""


class Lineage:
    """Finds the paths of one plan.

    Args:
        plan: The root.
        names: Names of the leaves' columns, by number, for messages.
    """

    def __init__(self, plan: PlanNode, names: Mapping[int, str]) -> None:
        self._plan = plan
        self._names = names
        self._paths: dict[tuple[int, Columns, int | None], tuple[Step, ...] | str] = {}

    def paths(self, columns: Columns, leaf: int) -> tuple[Step, ...]:
        """Returns the paths from the changed rows of a leaf to columns of the result.

        Raises:
            UnreachableError: There are no such paths.
        """
        return self._reach(self._plan, columns, leaf)

    def text(self, expression: Expression) -> str:
        """Abbreviates an expression."""
        if expression.bare:
            return self._names.get(expression.number, expression.name)
        inner = ", ".join(map(self.text, expression.children))
        if expression.kind in {"Alias", "Cast", "KnownNotNull"}:
            return inner
        return f"{expression.kind.lower()}({inner})"

    def _reach(self, node: PlanNode, columns: Columns, leaf: int | None) -> tuple[Step, ...]:
        """Returns paths to an operator's columns, from a leaf's changes, or from all rows."""
        place = (node.index, columns, leaf)
        if place not in self._paths:
            try:
                paths = tuple(dict.fromkeys(self._below(node, columns, leaf)))
                if len(paths) > PATHS_MAX:
                    _refuse(f"more than {PATHS_MAX} ways lead there through outer joins or unions")
                self._paths[place] = paths
            except UnreachableError as error:
                self._paths[place] = str(error)
        answer = self._paths[place]
        if isinstance(answer, str):
            raise UnreachableError(answer)
        return answer

    def _below(self, node: PlanNode, columns: Columns, leaf: int | None) -> Iterable[Step]:
        kind = node.kind
        if not node.children:
            return [Table(node.index, columns) if leaf is None else Changed(node.index, columns)]
        follow = _FOLLOWED.get(kind)
        if follow is not None:
            return follow(self, node, columns, leaf)
        if kind in _TRANSPARENT:
            return self._reach(node.children[0], columns, leaf)
        _refuse(f"the operator {kind} is in the way")
        return ()

    def _filtered(self, node: PlanNode, columns: Columns, leaf: int | None) -> Iterable[Step]:
        (condition,) = node.part("condition")
        if not node.children[0].children:  # right above a leaf: fewer rows, at no cost
            below = self._reach(node.children[0], columns | condition.reads, leaf)
            return [Filtered(step, condition.address) for step in below]
        return self._reach(node.children[0], columns, leaf)

    def _projected(self, node: PlanNode, columns: Columns, leaf: int | None) -> Iterable[Step]:
        part = "projectList" if node.kind == "Project" else "aggregateExpressions"
        if leaf is None and node.kind == "Aggregate" and not node.part("groupingExpressions"):
            _refuse("an aggregate over all rows has a row even where there is none below")
        named = {item.number: item for item in node.part(part)}
        wanted = [named[number] for number in sorted(columns)]
        for item in wanted:
            if any(inner.kind == "AggregateExpression" for inner in item.within()):
                _refuse(f"{item.name} is the result of an aggregate")
        return self._derived(node, [(item.number, item) for item in wanted], leaf)

    def _derived(
        self, node: PlanNode, made: Sequence[tuple[int, Expression]], leaf: int | None
    ) -> list[Step]:
        """Returns paths to the child, extended by columns computed from it."""
        below = frozenset().union(*(item.reads for _, item in made))
        reached = self._reach(node.children[0], below, leaf)
        if all(item.bare and item.number == number for number, item in made):
            return list(reached)
        columns = tuple(
            (n, (item.children[0] if item.kind == "Alias" else item).address) for n, item in made
        )
        shape = tuple(_output(node, number) for number, _ in made)
        return [Derived(step, columns, shape) for step in reached]

    def _windowed(self, node: PlanNode, columns: Columns, leaf: int | None) -> Iterable[Step]:
        made = {item.number for item in node.part("windowExpressions")}
        if columns & made:
            _refuse(f"{self._called(node, columns & made)} is the result of a window function")
        below = node.children[0]
        if leaf is not None:
            split = {item.number for item in node.part("partitionSpec") if item.bare}
            equal = _equal(below)
            groups = {equal.get(number, number) for number in split}
            loose = {n for n in columns if equal.get(n, n) not in groups}
            if loose:
                called = self._called(node, loose)
                _refuse(f"a window is not partitioned by {called}")
        return self._reach(below, columns, leaf)

    def _widened(self, node: PlanNode, columns: Columns, leaf: int | None) -> Iterable[Step]:
        """Returns paths through an operator that adds columns to each row, or repeats the row."""
        passed = columns & set(node.children[0].output)
        if passed == columns:
            return self._reach(node.children[0], columns, leaf)
        parts = (item for name in _MAKING for item in node.part(name))
        below = passed.union(*(item.reads for item in parts))
        return [Widened(step, node.index) for step in self._reach(node.children[0], below, leaf)]

    def _united(self, node: PlanNode, columns: Columns, leaf: int | None) -> Iterable[Step]:
        for child in node.children:
            if leaf is not None and leaf not in child.leaves:
                continue
            if len(child.output) != len(node.output) or len(set(node.output)) < len(node.output):
                _refuse("the columns of a union's branches cannot be distinguished")
            places = [(number, node.output.index(number)) for number in sorted(columns)]
            below = frozenset(child.output[place] for _, place in places)
            outputs = tuple((n, Address(child.index, "output", (place,))) for n, place in places)
            shape = tuple(Address(node.index, "output", (place,)) for _, place in places)
            for step in self._reach(child, below, leaf):
                yield Derived(step, outputs, shape)

    def _expanded(self, node: PlanNode, columns: Columns, leaf: int | None) -> Iterable[Step]:
        for projection in node.lists.get("projections", ()):
            made = dict(zip(node.output, projection, strict=True))
            yield from self._derived(node, [(n, made[n]) for n in sorted(columns)], leaf)

    def _joined(self, node: PlanNode, columns: Columns, leaf: int | None) -> Iterable[Step]:
        left, _ = node.children
        if node.join_type in _ONE_SIDED and not columns <= set(left.output):
            _refuse("the key depends on whether a row exists")
        if leaf is None:
            return self._all_rows(node, columns)
        if leaf in left.leaves:
            return self._changed_side(node, columns, leaf, mirrored=False)
        return self._changed_side(node, columns, leaf, mirrored=True)

    def _all_rows(self, node: PlanNode, columns: Columns) -> list[Step]:
        """Returns paths to all rows of an unchanged join, or more."""
        left, right = node.children
        theirs = columns - set(left.output)
        ours = columns - theirs
        kind = node.join_type
        if kind in _ONE_SIDED or (not theirs and kind in _INNER | _LEFT):
            return list(self._reach(left, ours, None))
        if not ours and kind in _INNER | {"RightOuter"}:
            return list(self._reach(right, theirs, None))
        paths = self._pairs_of_rows(node, columns, None, mirrored=False)
        if kind in _LEFT | _FULL:
            paths += _with_nulls(node, self._reach(left, ours, None), ours, theirs)
        if kind in _FULL | {"RightOuter"}:
            paths += _with_nulls(node, self._reach(right, theirs, None), theirs, ours)
        return paths

    def _changed_side(
        self, node: PlanNode, columns: Columns, leaf: int, *, mirrored: bool
    ) -> list[Step]:
        """Returns paths from a leaf on one side of a join: the left one unless mirrored."""
        side = node.children[1 if mirrored else 0]
        ours = columns & set(side.output)
        theirs = columns - ours
        kind = node.join_type
        # can the other side's rows occur without a match, and can this side's
        other_alone = kind in _FULL | (_LEFT | _ONE_SIDED if mirrored else {"RightOuter"})
        side_alone = kind in _FULL | ({"RightOuter"} if mirrored else _LEFT)
        paths = self._pairs_of_rows(node, columns, leaf, mirrored=mirrored)
        if side_alone and theirs:
            paths += _with_nulls(node, self._reach(side, ours, leaf), ours, theirs)
        if other_alone and ours:
            alone = self._pairs_of_rows(node, theirs, leaf, mirrored=mirrored)
            paths += _with_nulls(node, alone, theirs, ours)
        return paths

    def _pairs_of_rows(
        self, node: PlanNode, columns: Columns, leaf: int | None, *, mirrored: bool
    ) -> list[Step]:
        """Returns paths to the matching pairs, from one side of a join to the columns of both."""
        side, other = reversed(node.children) if mirrored else node.children
        ours = columns & set(side.output)
        theirs = columns - ours
        equalities = list(self._equalities(node, set(side.output), set(other.output)))
        given: list[tuple[int, Expression]] = []
        for mine, its, _ in equalities:
            if its.bare and its.number in theirs and self._reaches(side, ours | mine.reads, leaf):
                given.append((its.number, mine))
                ours |= mine.reads
                theirs -= {its.number}
        if theirs:
            reached = self._matched(side, other, (ours, theirs), leaf, equalities)
        else:
            reached = list(self._reach(side, ours, leaf))
        if not given:
            return reached
        rest = sorted(columns - {number for number, _ in given})
        kept = [(number, _output(node, number)) for number in rest]
        outputs = (*kept, *((number, mine.address) for number, mine in given))
        shape = tuple(_output(node, number) for number, _ in outputs)
        return [Derived(step, tuple(outputs), shape) for step in reached]

    def _matched(
        self,
        side: PlanNode,
        other: PlanNode,
        wanted: tuple[Columns, Columns],
        leaf: int | None,
        equalities: Sequence[tuple[Expression, Expression, bool]],
    ) -> list[Step]:
        ours, theirs = wanted
        pairs = []
        for mine, its, null_safe in equalities:
            if self._reaches(side, ours | mine.reads, leaf) and self._reaches(
                other, theirs | its.reads, None
            ):
                ours |= mine.reads
                theirs |= its.reads
                text = f"{self.text(mine)} = {self.text(its)}"
                pairs.append(Pair(mine.address, its.address, null_safe, text))
        lefts = self._reach(side, ours, leaf)
        rights = self._reach(other, theirs, None)
        if not pairs:
            _refuse(f"no equality of the join leads to {self._called(other, theirs)}")
        few = leaf is not None
        return [Matched(one, two, tuple(pairs), few) for one in lefts for two in rights]

    def _reaches(self, node: PlanNode, columns: Columns, leaf: int | None) -> bool:
        try:
            self._reach(node, columns, leaf)
        except UnreachableError:
            return False
        return True

    def _equalities(
        self, node: PlanNode, ours: set[int], theirs: set[int]
    ) -> Iterable[tuple[Expression, Expression, bool]]:
        """Returns the equalities of a join: our side, the other, whether NULL equals NULL."""
        for condition in node.part("condition"):
            for item in condition.conjuncts():
                if item.kind not in {"EqualTo", "EqualNullSafe"}:
                    continue
                one, two = item.children
                if not one.reads or not two.reads:
                    continue
                null_safe = item.kind == "EqualNullSafe"
                if one.reads <= ours and two.reads <= theirs:
                    yield one, two, null_safe
                elif two.reads <= ours and one.reads <= theirs:
                    yield two, one, null_safe

    def _called(self, node: PlanNode, columns: Iterable[int]) -> str:
        known = {
            item.number: item.name
            for operator in node.within()
            for item in operator.expressions()
            if item.attribute is not None
        }
        names = (self._names.get(n) or known.get(n) or "a column" for n in sorted(columns))
        return ", ".join(dict.fromkeys(names))


_FOLLOWED: Final[Mapping[str, Callable[..., Iterable[Step]]]] = {
    "Filter": Lineage._filtered,  # noqa: SLF001 - the table of its own methods
    "Project": Lineage._projected,  # noqa: SLF001
    "Aggregate": Lineage._projected,  # noqa: SLF001
    "Window": Lineage._windowed,  # noqa: SLF001
    "WindowGroupLimit": Lineage._windowed,  # noqa: SLF001
    "Generate": Lineage._widened,  # noqa: SLF001
    "ArrowEvalPython": Lineage._widened,  # noqa: SLF001
    "BatchEvalPython": Lineage._widened,  # noqa: SLF001
    "Union": Lineage._united,  # noqa: SLF001
    "Expand": Lineage._expanded,  # noqa: SLF001
    "Join": Lineage._joined,  # noqa: SLF001
}


KNOWN: Final = _TRANSPARENT | _CONSTANT | set(_FOLLOWED) | {"LogicalRDD"}
"""Operators that `Lineage` supports; a plan with others is computed as a whole."""


def _with_nulls(
    node: PlanNode, reached: Iterable[Step], kept: Columns, nulls: Columns
) -> list[Step]:
    """Returns rows of one side of an outer join, with NULL for the other side's columns."""
    if not nulls:
        return list(reached)
    columns = [(number, _output(node, number)) for number in sorted(kept)]
    outputs = (*columns, *((number, None) for number in sorted(nulls)))
    shape = tuple(_output(node, number) for number, _ in outputs)
    return [Derived(step, outputs, shape) for step in reached]


def _output(node: PlanNode, number: int) -> Address:
    return Address(node.index, "output", (node.output.index(number),))


def _equal(node: PlanNode) -> dict[int, int]:
    """Returns classes of columns that are equal in every row of an operator, NULL to NULL."""
    classes: dict[int, int] = {}

    def join(one: int, two: int) -> None:
        old, new = classes.get(two, two), classes.get(one, one)
        for number, group in [*classes.items(), (two, old), (one, new)]:
            classes[number] = new if group == old else group

    if node.kind in _TRANSPARENT | _WINDOWS | {"Project", "Join"}:
        for child in node.children:
            for number, group in _equal(child).items():
                join(group, number)
    for one, two in _made_equal(node):
        join(one, two)
    return classes


def _made_equal(node: PlanNode) -> Iterator[tuple[int, int]]:
    """Returns columns that this operator itself makes equal."""
    for item in node.part("projectList"):
        if item.kind == "Alias" and item.children[0].bare:
            yield item.children[0].number, item.number
    if node.kind == "Filter" or (node.kind == "Join" and node.join_type in _INNER):
        for condition in node.part("condition"):
            for item in condition.conjuncts():
                if item.kind == "EqualTo" and all(side.bare for side in item.children):
                    yield item.children[0].number, item.children[1].number


def _refuse(reason: str) -> None:
    raise UnreachableError(reason)
