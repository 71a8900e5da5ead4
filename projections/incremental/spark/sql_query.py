"""The query of a derived view: a function of DataFrames, or the text of a SELECT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import orjson
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession

from projections.errors import ViewQueryError
from projections.incremental.spark.java_classes import DATASET, java_class

if TYPE_CHECKING:
    from collections.abc import Iterator

Definition = Callable[[Mapping[str, DataFrame]], DataFrame]
"""Makes the view from its inputs, by name. It must only describe: never count, collect or write."""


@dataclass(frozen=True, slots=True)
class SqlDefinition:
    """A view that is the text of one SELECT; not for two threads at once.

    Attributes:
        text: The query.
        inputs: Names of its inputs, in the order of their first use.
    """

    text: str
    inputs: tuple[str, ...]
    _sessions: WeakKeyDictionary[SparkSession, Any] = field(
        default_factory=WeakKeyDictionary, repr=False, compare=False
    )

    def __call__(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """Returns the query over the given inputs."""
        some = inputs[self.inputs[0]]
        java = self._own_session(some.sparkSession)
        dataset = java_class(some.sparkSession, DATASET)
        for name in self.inputs:
            plan = inputs[name]._jdf.queryExecution().analyzed()  # noqa: SLF001
            dataset.ofRows(java, plan).createOrReplaceTempView(name)
        return DataFrame(java.sql(self.text), some.sparkSession)

    def _own_session(self, session: SparkSession) -> Any:
        """A session for the names of the inputs: in the job's they would meet those of others.

        It is made once for each session: every one keeps memory in the driver.
        """
        found = self._sessions.get(session)
        if found is None:
            found = session._jsparkSession.cloneSession()  # noqa: SLF001
            self._sessions[session] = found
        return found


def definition_of_sql(session: SparkSession, text: str) -> SqlDefinition:
    """Reads a SELECT, without running it.

    Args:
        session: Its parser is used.
        text: One SELECT, with or without a semicolon after it.

    Raises:
        ViewQueryError: It is no query, more than one, or reads nothing.
    """
    query = text.strip().removesuffix(";").rstrip()
    parser = session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    try:
        plan = parser.parseQuery(query)
    except ParseException as error:
        raise ViewQueryError(
            "the query of a view is not one SELECT",
            detail=error.getCondition() or "it cannot be parsed",
            hint="write one SELECT; Headwater creates and writes the tables",
        ) from error
    names = tuple(dict.fromkeys(_relations(orjson.loads(plan.toJSON()), frozenset())))
    if not names:
        raise ViewQueryError(
            "the query of a view reads no input",
            hint="select from a captured table or from another view",
        )
    qualified = [name for name in names if "." in name]
    if qualified:
        raise ViewQueryError(
            "the query of a view uses a name with a dot",
            detail=f"names: {', '.join(qualified)}",
            hint="use the names of views as declared",
        )
    return SqlDefinition(query, names)


def _relations(nodes: list[Any], known: frozenset[str]) -> Iterator[str]:
    """Names of the tables that a parsed plan reads, but for those that it defines itself."""
    if nodes and nodes[0]["class"].endswith(".UnresolvedWith"):
        for item in nodes[0]["cteRelations"]:
            name = item["_1"].lower()
            itself = {name} if nodes[0].get("allowRecursion") else set()
            yield from _relations(item["_2"], known | itself)
            known |= {name}
        yield from _relations(nodes[1:], known)
        return
    for place, node in enumerate(nodes):
        if node["class"].endswith(".UnresolvedWith"):
            # what follows a WITH further in belongs to it or to its neighbours: names that it
            # defines are taken out of both, and a table of that name is then not found
            yield from _relations(nodes[place:], known)
            return
        if node["class"].endswith(".UnresolvedRelation"):
            name = ".".join(_parts(node["multipartIdentifier"]))
            if name.lower() not in known:
                yield name
            continue
        for value in node.values():
            yield from _nested(value, known)


def _nested(value: object, known: frozenset[str]) -> Iterator[str]:
    """Names within the expressions of an operator, where a subquery has a plan of its own."""
    if isinstance(value, list):
        if value and all(isinstance(item, dict) and "class" in item for item in value):
            yield from _relations(value, known)
        else:
            for item in value:
                yield from _nested(item, known)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.strip("[]").split(",")]
