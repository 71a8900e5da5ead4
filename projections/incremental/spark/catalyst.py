"""Spark's own plans: finds expressions by address, and builds paths from them.

Paths consist of Spark's logical operators, not of DataFrames: an expression of the plan reads its
columns by number, and only a plan can give these numbers to other rows. One query is analysed at
the end, not one for each step.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import orjson
from pyspark.sql import DataFrame

from projections.errors import ViewQueryError
from projections.incremental.analysis.path import (
    Changed,
    Derived,
    Filtered,
    Matched,
    Table,
    Widened,
)
from projections.incremental.spark.java_classes import DATASET, java_class, scala_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from projections.incremental.analysis.path import Step
    from projections.incremental.analysis.query_plan import Address

INPUT_MARK: Final = "headwater.input"
"""Key in a column's metadata that marks the leaf of an input."""

_CATALYST: Final = "org.apache.spark.sql.catalyst"
_NUMBER: Final = re.compile(r"#(\d+)L?\n")


class Catalyst:
    """The plan of one query in Spark's own objects.

    Not thread-safe, and unusable after its session has ended.

    Args:
        session: The session that the plan belongs to.
        plan: Spark's logical plan.
    """

    def __init__(self, session: SparkSession, plan: Any) -> None:
        self._session = session
        self.plan = plan
        self._expressions: dict[Address, Any] = {}

    @cached_property
    def nodes(self) -> tuple[Any, ...]:
        """Returns the operators in pre-order."""
        nodes: list[Any] = []
        waiting = [self.plan]
        while waiting:
            node = waiting.pop()
            nodes.append(node)
            children = node.children()
            waiting += [children.apply(place) for place in reversed(range(children.size()))]
        return tuple(nodes)

    def outputs(self) -> list[tuple[int, ...]]:
        """Returns the column numbers of each operator, in order."""
        outputs = []
        for node in self.nodes:
            output = node.output()
            numbers = _NUMBER.findall(output.mkString("\n") + "\n")
            if len(numbers) != output.size():  # a name that looks like a number
                numbers = [output.apply(n).exprId().id() for n in range(output.size())]
            outputs.append(tuple(map(int, numbers)))
        return outputs

    def input_of(self, leaf: int) -> str | None:
        """Returns the name of a leaf's input, from its columns' metadata; None for another leaf."""
        output = self.nodes[leaf].output()
        if not output.size():
            return None
        mark: str | None = orjson.loads(output.apply(0).metadata().json()).get(INPUT_MARK)
        return mark

    def expression(self, address: Address) -> Any:
        """Returns the expression at an address."""
        if address not in self._expressions:
            expression = getattr(self.nodes[address.operator], address.part)()
            if not address.places and expression.getClass().getName() == "scala.Some":
                expression = expression.get()
            for place in address.places:
                expression = expression.apply(place)
            for place in address.inward:
                expression = expression.children().apply(place)
            self._expressions[address] = expression
        return self._expressions[address]

    def frame(self, plans: Sequence[Any]) -> DataFrame:
        """Returns the rows of all plans, which have the same columns, as a DataFrame."""
        plan = plans[0]
        if len(plans) > 1:
            plan = self._operator("Union")(self._seq(plans), False, False)
        dataset = java_class(self._session, DATASET)
        return DataFrame(dataset.ofRows(self._session._jsparkSession, plan), self._session)  # noqa: SLF001

    def run(
        self,
        step: Step,
        changed: DataFrame,
        table: Callable[[int], DataFrame | None],
    ) -> Any:
        """Returns the logical plan of a path.

        Args:
            step: The path.
            changed: The changed rows at its beginning.
            table: The rows of another leaf; None for a constant of the query.
        """
        if isinstance(step, Changed):
            return self._leaf(step, changed)
        if isinstance(step, Table):
            rows = table(step.leaf)
            return self.nodes[step.leaf] if rows is None else self._leaf(step, rows)
        if isinstance(step, Filtered):
            below = self.run(step.child, changed, table)
            return self._operator("Filter")(self.expression(step.condition), below)
        if isinstance(step, Derived):
            below = self.run(step.child, changed, table)
            made = [
                self._named(source, self.expression(shape))
                for (_, source), shape in zip(step.columns, step.shape, strict=True)
            ]
            return self._operator("Project")(self._seq(made), below)
        if isinstance(step, Widened):
            return self._widened(step, self.run(step.child, changed, table))
        left = self.run(step.left, changed, table)
        return self._join(step, left, self.run(step.right, changed, table))

    def selected(self, plan: Any, outputs: Iterable[int]) -> Any:
        """Returns a plan with some of the result's columns, by index."""
        chosen = [self.plan.output().apply(place) for place in outputs]
        return self._operator("Project")(self._seq(chosen), plan)

    def _leaf(self, step: Changed | Table, rows: DataFrame) -> Any:
        """Returns rows of an input under the column numbers of one use in the plan."""
        plan = rows._jdf.queryExecution().analyzed()  # noqa: SLF001
        given = _attributes(plan)
        made = []
        for name, attribute in self._leaf_columns(step.leaf).items():
            if attribute.exprId().id() in step.columns:
                if name not in given:
                    raise ViewQueryError(
                        "an input lacks a column with which the view was declared",
                        detail=f"column: {name}",
                        hint="analyse the view again with the present input",
                    )
                made.append(self._alias(given[name], attribute))
        return self._operator("Project")(self._seq(made), plan)

    def _leaf_columns(self, leaf: int) -> Mapping[str, Any]:
        return _attributes(self.nodes[leaf])

    def _widened(self, step: Widened, below: Any) -> Any:
        node = self.nodes[step.operator]
        if node.nodeName() != "Generate":
            return node.withNewChildren(self._seq([below]))
        # indexes in the plan's own child tell which columns can be omitted
        return self._operator("Generate")(
            node.generator(),
            self._seq(()),
            node.outer(),
            node.qualifier(),
            node.generatorOutput(),
            below,
        )

    def _join(self, step: Matched, left: Any, right: Any) -> Any:
        condition = None
        for pair in step.pairs:
            kind = self._expression_class("EqualNullSafe" if pair.null_safe else "EqualTo")
            equal = kind(self.expression(pair.left), self.expression(pair.right))
            condition = (
                equal if condition is None else self._expression_class("And")(condition, equal)
            )
        return self._operator("Join")(
            left,
            right,
            self._object(f"{_CATALYST}.plans.Inner"),
            java_class(self._session, "scala.Some")(condition),
            self._hint(few=step.few),
        )

    def _hint(self, *, few: bool) -> Any:
        """Hints that the side from changed rows is the small one, which Spark cannot know."""
        none, some = self._object("scala.None"), java_class(self._session, "scala.Some")
        if not few:
            return self._operator("JoinHint")(none, none)
        wanted = self._object(f"{_CATALYST}.plans.logical.BROADCAST")
        return self._operator("JoinHint")(some(self._operator("HintInfo")(some(wanted))), none)

    def _named(self, source: Address | None, shape: Any) -> Any:
        if source is None:
            null = self._expression_class("Literal")(None, shape.dataType())
            return self._alias(null, shape)
        expression = self.expression(source)
        return self._alias(expression, shape)

    def _alias(self, expression: Any, shape: Any) -> Any:
        """Returns an expression under the name and number of an attribute."""
        return self._expression_class("Alias")(
            expression,
            shape.name(),
            shape.exprId(),
            self._seq(()),
            self._object("scala.None"),
            self._seq(()),
        )

    def _seq(self, items: Iterable[Any]) -> Any:
        return java_class(self._session, "PythonUtils").toSeq(list(items))

    def _operator(self, name: str) -> Any:
        return java_class(self._session, f"{_CATALYST}.plans.logical.{name}")

    def _expression_class(self, name: str) -> Any:
        return java_class(self._session, f"{_CATALYST}.expressions.{name}")

    def _object(self, name: str) -> Any:
        return scala_object(self._session, name)


def opaque(session: SparkSession, name: str, schema: StructType) -> DataFrame:
    """Returns an input without rows whose emptiness is hidden from Spark's optimizer.

    Args:
        session: The session.
        name: The input's name, which marks its columns.
        schema: Its columns.
    """
    marked = type(schema)(
        [
            type(column)(column.name, column.dataType, column.nullable, {INPUT_MARK: name})
            for column in schema
        ]
    )
    java = session._jsparkSession  # noqa: SLF001
    shape = java_class(session, "org.apache.spark.sql.types.DataType").fromJson(marked.json())
    rows = session._jsc.emptyRDD()  # noqa: SLF001
    return DataFrame(java.createDataFrame(rows, shape), session)


def _attributes(plan: Any) -> dict[str, Any]:
    output = plan.output()
    attributes = (output.apply(place) for place in range(output.size()))
    return {attribute.name(): attribute for attribute in attributes}
