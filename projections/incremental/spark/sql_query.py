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
"""Computes the view from its inputs, by name. It only describes: never count, collect or write."""


@dataclass(frozen=True, slots=True)
class SqlDefinition:
    """A view defined by the text of one SELECT; not thread-safe.

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
        """Returns a session for the names of the inputs, which would collide in the job's own.

        It is created once per session, because each one uses memory of the driver.
        """
        clone = self._sessions.get(session)
        if clone is None:
            clone = session._jsparkSession.cloneSession()  # noqa: SLF001
            self._sessions[session] = clone
        return clone


def definition_of_sql(session: SparkSession, text: str) -> SqlDefinition:
    """Parses a SELECT, without running it.

    Args:
        session: Its parser is used.
        text: One SELECT, with an optional final semicolon.

    Raises:
        ViewQueryError: It is not a query, contains several, or reads nothing.
    """
    query = text.strip().removesuffix(";").rstrip()
    parser = session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    try:
        plan = parser.parseQuery(query)
    except ParseException as error:
        raise ViewQueryError(
            "the query of a view is not one SELECT",
            detail=next(filter(None, str(error).splitlines()), "it cannot be parsed")[:300],
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
    """Returns the names of the tables that a parsed plan reads, without its own definitions."""
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
            # an inner WITH belongs to its query or to its neighbours: its names are removed from
            # both, so a table of that name is then unknown
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
    """Returns the names within an operator's expressions, where subqueries have their own plans."""
    if isinstance(value, list):
        if value and all(isinstance(item, dict) and "class" in item for item in value):
            yield from _relations(value, known)
        else:
            for item in value:
                yield from _nested(item, known)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.strip("[]").split(",")]
