"""Spark's logical plan of a query, read from Spark's JSON.

An operator and an expression have an address, by which the engine finds its own object. Spark
numbers attributes; one number is one column of one use of an input, wherever it passes, so that
equal numbers mean equal values within a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an expression in a plan.

    Attributes:
        operator: Number of the operator in pre-order from the root.
        part: The operator's part: `projectList`, `condition`, `output` and so on.
        places: Indexes into that part, if it is a list, or a list of lists.
        inward: From there, the child indexes on the way to an inner expression.
    """

    operator: int
    part: str
    places: tuple[int, ...] = ()
    inward: tuple[int, ...] = ()


@dataclass(frozen=True)
class Expression:
    """An expression of a plan.

    Attributes:
        kind: Name of Spark's class.
        address: Its address.
        children: Its operands.
        attribute: Number of the attribute that it is or names.
        name: Name of that attribute or alias.
        deterministic: False if Spark reports that for this expression itself.
        literal: Value of a literal, as Spark writes it.
        literal_type: Type of a literal.
    """

    kind: str
    address: Address
    children: tuple[Expression, ...] = ()
    attribute: int | None = None
    name: str = ""
    deterministic: bool = True
    literal: str = ""
    literal_type: str = ""

    @cached_property
    def reads(self) -> frozenset[int]:
        """Returns the numbers of the attributes that it reads."""
        if self.bare:
            return frozenset({self.number})
        return frozenset().union(*(child.reads for child in self.children))

    @property
    def bare(self) -> bool:
        """Returns whether it is only an attribute."""
        return self.kind == "AttributeReference"

    @property
    def number(self) -> int:
        """Returns the number of the attribute; only for attributes and aliases."""
        if self.attribute is None:
            raise ValueError(f"{self.kind} names no attribute")
        return self.attribute

    def within(self) -> Iterator[Expression]:
        """Yields itself and all inner expressions."""
        yield self
        for child in self.children:
            yield from child.within()

    def conjuncts(self) -> Iterator[Expression]:
        """Returns the parts of a conjunction."""
        if self.kind == "And":
            for child in self.children:
                yield from child.conjuncts()
        else:
            yield self


@dataclass(frozen=True)
class PlanNode:
    """A node of the plan.

    Attributes:
        index: Its number in pre-order from the root.
        kind: Name of Spark's class.
        children: Its inputs.
        parts: Its expressions, by the name of the part.
        lists: Lists of lists of expressions, by the name of the part.
        join_type: Type of a join: `Inner`, `LeftOuter`, …
        output: Numbers of its columns, in order.
    """

    index: int
    kind: str
    children: tuple[PlanNode, ...]
    parts: Mapping[str, tuple[Expression, ...]] = field(default_factory=dict)
    lists: Mapping[str, tuple[tuple[Expression, ...], ...]] = field(default_factory=dict)
    join_type: str = ""
    output: tuple[int, ...] = ()

    @cached_property
    def leaves(self) -> frozenset[int]:
        """Returns the indexes of the leaves below it, or its own."""
        if not self.children:
            return frozenset({self.index})
        return frozenset().union(*(child.leaves for child in self.children))

    def part(self, name: str) -> tuple[Expression, ...]:
        """Returns the expressions of one part; empty if it has no such part."""
        return self.parts.get(name, ())

    def within(self) -> Iterator[PlanNode]:
        """Yields itself and all operators below."""
        yield self
        for child in self.children:
            yield from child.within()

    def expressions(self) -> Iterator[Expression]:
        """Yields all its expressions, with inner ones."""
        groups = [*self.parts.values(), *(row for rows in self.lists.values() for row in rows)]
        for group in groups:
            for item in group:
                yield from item.within()


def read_plan(text: str, outputs: Sequence[tuple[int, ...]]) -> PlanNode:
    """Reads a plan.

    Args:
        text: Result of `LogicalPlan.toJSON`.
        outputs: Numbers of each operator's columns, in pre-order; the text lacks them.
    """
    nodes: list[dict[str, Any]] = orjson.loads(text)
    root, _ = _operator(nodes, outputs, 0)
    return root


def kinds_of(text: str) -> frozenset[str]:
    """Returns the names of all classes in a plan's text, including those in subqueries."""
    kinds: set[str] = set()
    waiting: list[Any] = [orjson.loads(text)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            if "class" in value:
                kinds.add(_short(value["class"]))
    return frozenset(kinds)


def _operator(
    nodes: Sequence[Mapping[str, Any]], outputs: Sequence[tuple[int, ...]], index: int
) -> tuple[PlanNode, int]:
    node = nodes[index]
    after = index + 1
    children: list[PlanNode] = []
    for _ in range(node["num-children"]):
        child, after = _operator(nodes, outputs, after)
        children.append(child)
    parts: dict[str, tuple[Expression, ...]] = {}
    lists: dict[str, tuple[tuple[Expression, ...], ...]] = {}
    for name, value in node.items():
        if not isinstance(value, list) or not value:
            continue
        if _is_tree(value):
            parts[name] = (_expression(value, Address(index, name)),)
        elif all(map(_is_tree, value)):
            parts[name] = _listed(value, index, name, ())
        elif all(isinstance(row, list) and all(map(_is_tree, row)) for row in value):
            lists[name] = tuple(_listed(row, index, name, (n,)) for n, row in enumerate(value))
    join_type = node.get("joinType") or {}
    named = _short(join_type.get("object") or join_type.get("product-class") or "")
    kind = _short(node["class"])
    return PlanNode(index, kind, tuple(children), parts, lists, named, outputs[index]), after


def _listed(
    trees: Sequence[Any], index: int, name: str, places: tuple[int, ...]
) -> tuple[Expression, ...]:
    return tuple(
        _expression(tree, Address(index, name, (*places, place)))
        for place, tree in enumerate(trees)
    )


def _is_tree(value: object) -> bool:
    """Returns whether this is one expression: a list of its nodes in pre-order."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(node, dict) and "num-children" in node for node in value)
    )


def _expression(nodes: Sequence[Mapping[str, Any]], address: Address) -> Expression:
    def build(index: int, inward: tuple[int, ...]) -> tuple[Expression, int]:
        node = nodes[index]
        after = index + 1
        children = []
        for place in range(node["num-children"]):
            child, after = build(after, (*inward, place))
            children.append(child)
        number = node.get("exprId") or {}
        kind = _short(node["class"])
        literal = node if kind == "Literal" else {}
        expression = Expression(
            kind=kind,
            address=Address(address.operator, address.part, address.places, inward),
            children=tuple(children),
            attribute=number.get("id"),
            name=node.get("name") or "",
            deterministic=node.get("udfDeterministic") is not False,
            literal=str(literal.get("value")),
            literal_type=str(literal.get("dataType")),
        )
        return expression, after

    return build(0, ())[0]


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1].rstrip("$")
