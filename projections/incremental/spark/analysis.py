"""The analysis of a derived view: its query, its keys, and how it is maintained."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from projections.definition.column_names import untabular
from projections.definition.columns import ROW_ID_COLUMN
from projections.errors import ViewQueryError
from projections.incremental.analysis.pruning import anchors
from projections.incremental.analysis.query_plan import kinds_of, read_plan
from projections.incremental.analysis.strategy import AnalysedQuery, Keyed, Whole, choose, explain
from projections.incremental.spark.catalyst import Catalyst, opaque

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from projections.incremental.analysis.pruning import Anchor
    from projections.incremental.analysis.strategy import Explanation, Strategy
    from projections.incremental.spark.sql_query import Definition

_EXCLUDED: Final = (
    # creates filters with subqueries, depending on the sizes of inputs
    "org.apache.spark.sql.catalyst.optimizer.InjectRuntimeFilter",
    # evaluates rows in the plan; a query must not depend on those
    "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
    "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation",
)
_EXCLUSION: Final = "spark.sql.optimizer.excludedRules"


@dataclass(frozen=True)
class Derivation:
    """A derived view with everything needed to maintain it; belongs to one session.

    Attributes:
        definition: Its query.
        inputs: The inputs' columns, by name.
        keys: Columns that identify a row.
        columns: The result's columns, in order.
        strategy: How it is maintained.
        catalyst: The plan with which the paths of the strategy run.
        anchors: Inputs by which reads can be pruned, if columns of the key identify their rows.
    """

    definition: Definition
    inputs: Mapping[str, StructType]
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    strategy: Strategy
    catalyst: Catalyst = field(repr=False)
    anchors: tuple[Anchor, ...] = ()

    def for_changes_of(self, name: str) -> Derivation:
        """Returns the view with the strategy for a change of only one input; see `Keyed`.

        Args:
            name: The input.
        """
        strategy = self.strategy
        return (
            self
            if isinstance(strategy, Whole)
            else replace(self, strategy=strategy.for_changes_of(name))
        )

    def explain(self) -> Explanation:
        """Returns the explanation for `headwater view explain`."""
        return explain(self.strategy, self.inputs, self.keys)


def analyse(
    session: SparkSession,
    definition: Definition,
    inputs: Mapping[str, StructType],
    keys: Sequence[str],
) -> Derivation:
    """Determines how a derived view can be maintained.

    It analyses the optimised plan, not the one as written: only the optimizer turns EXISTS, IN and
    correlated subqueries into joins and moves conditions to their joins, and it changes no result.
    The inputs are opaque leaves, so no simplification depends on present rows.

    Args:
        session: The session that will maintain the view.
        definition: Its query.
        inputs: The inputs' columns, by name.
        keys: Columns of the result that identify a row; NULL is an ordinary value.

    Raises:
        ViewQueryError: Spark rejects the query, or it lacks a key column.
    """
    # a session of its own, so that excluded rules affect no other query
    own = type(session)(session.sparkContext, session._jsparkSession.cloneSession())  # noqa: SLF001
    own.conf.set(_EXCLUSION, ",".join(_EXCLUDED))
    frames = {name: opaque(own, name, schema) for name, schema in inputs.items()}
    with _jobs_seen(own) as jobs:
        result = definition(frames)
        execution = result._jdf.queryExecution()  # noqa: SLF001
        written, optimised = execution.analyzed(), execution.optimizedPlan()
    columns = tuple(result.columns)
    _require_columns(columns, keys)
    catalyst = Catalyst(session, optimised)
    near: tuple[Anchor, ...] = ()
    plan = read_plan(optimised.toJSON(), catalyst.outputs())
    if jobs:
        strategy: Strategy = Whole("its query reads rows while it is declared, as pivot does")
    else:
        leaves = {leaf: name for leaf in plan.leaves if (name := catalyst.input_of(leaf))}
        query = AnalysedQuery(
            plan,
            written=kinds_of(written.toJSON()),
            leaves=dict(sorted(leaves.items())),
            columns=dict(zip(columns, plan.output, strict=True)),
            names=_names(catalyst, leaves),
        )
        strategy = choose(query, keys)
        if isinstance(strategy, Keyed):
            near = anchors(query, strategy, _kinds(inputs))
    if isinstance(strategy, Keyed) and not optimised.deterministic():
        strategy = Whole("it has an expression that is not deterministic")
    return Derivation(definition, dict(inputs), tuple(keys), columns, strategy, catalyst, near)


def keyed(derivation: Derivation) -> Keyed:
    """Returns the strategy of a view that is maintained by keys.

    Raises:
        ViewQueryError: It is computed as a whole.
    """
    if isinstance(derivation.strategy, Keyed):
        return derivation.strategy
    raise ViewQueryError(
        "a view that is computed as a whole has no affected keys",
        detail=derivation.strategy.reason,
    )


def _require_columns(columns: Sequence[str], keys: Sequence[str]) -> None:
    if len(set(columns)) < len(columns):
        twice = sorted({name for name in columns if columns.count(name) > 1})
        raise ViewQueryError(
            "two columns of a view have one name",
            detail=f"columns: {', '.join(twice)}",
            hint="give them different names with AS",
        )
    found = untabular(name for name in columns if name != ROW_ID_COLUMN)
    if found is not None:
        raise ViewQueryError(
            f"a view cannot have a column {found[0]}",
            detail=found[1],
            hint="give it another name with AS",
        )
    missing = [name for name in keys if name not in columns]
    if missing or not keys:
        raise ViewQueryError(
            "the query's result lacks key columns",
            detail=f"keys: {', '.join(missing) or 'none'}; columns: {', '.join(columns)}",
            hint="use columns of the query's result as keys",
        )


def _names(catalyst: Catalyst, leaves: Mapping[int, str]) -> dict[int, str]:
    names = {}
    for leaf, name in leaves.items():
        output = catalyst.nodes[leaf].output()
        for place in range(output.size()):
            attribute = output.apply(place)
            names[attribute.exprId().id()] = f"{name}.{attribute.name()}"
    return names


def _kinds(inputs: Mapping[str, StructType]) -> dict[str, dict[str, str]]:
    return {
        name: {column.name: column.dataType.simpleString() for column in schema}
        for name, schema in inputs.items()
    }


@contextmanager
def _jobs_seen(session: SparkSession) -> Iterator[list[int]]:
    """Records the Spark jobs that this thread starts inside the block."""
    jobs: list[int] = []
    context = session.sparkContext
    group = f"analysis {uuid4()}"
    context.addJobTag(group)
    try:
        yield jobs
    finally:
        java: Any = context._jsc.sc()  # noqa: SLF001
        java.listenerBus().waitUntilEmpty()  # a listener thread records jobs
        jobs += list(java.statusTracker().getJobIdsForTag(group))
        context.removeJobTag(group)


def only_known(derivation: Derivation, frames: Mapping[str, DataFrame]) -> None:
    """Refuses unknown inputs."""
    strange = sorted(set(frames) - set(derivation.inputs))
    if strange:
        raise ViewQueryError(
            "changes of an input that the view does not read", detail=f"inputs: {strange}"
        )
