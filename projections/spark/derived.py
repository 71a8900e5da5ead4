"""Derived views at one boundary: what changed of their inputs, and what becomes of their rows."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_schema

from projections.derivation.errors import ViewQueryError
from projections.derivation.strategy import Keyed
from projections.errors import ProjectionError
from projections.fault import FaultError
from projections.plan import VERSION_COLUMN
from projections.published import TableVersion
from projections.search.fields import DELETED_FIELD
from projections.sinks.derived_table import DerivedTable
from projections.sinks.sieve import Sieve
from projections.spark.derivation.analysis import analyse
from projections.spark.derivation.comparison import differences
from projections.spark.derivation.definition import definition_of_sql
from projections.spark.derivation.recomputation import affected, gathered, outcome
from projections.spec import writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from projections.derivation.strategy import Explanation
    from projections.expectation.expectation import Expectation
    from projections.published import PublishedVersion
    from projections.spark.derivation.analysis import Derivation
    from projections.spark.table_versions import TableVersions
    from projections.tenure import Tenure
    from projections.view import DerivedView

_LSN_BITS: Final = 56
_FEW_ROWS: Final = 1_000_000
"""Rows of all inputs from which on it pays to have Spark compile what it does with each."""
_WRITTEN_DDL: Final = "kept long, gone long, failed map<string,long>"
_WRITTEN: Final = pa.schema(
    [("kept", pa.int64()), ("gone", pa.int64()), ("failed", pa.map_(pa.string(), pa.int64()))]
)


@dataclass(frozen=True, slots=True)
class DerivedWriter:
    """Writes what became of a view's rows, in one of Spark's workers.

    Attributes:
        root: Folder of the tables.
        view: Name of the view.
        keys: Columns that identify a row.
        schema: Columns of what is given.
        version: Boundary at which it is so, as a number.
        anew: Whether it is all that the view has, in place of what it had.
        expectations: What its rows should be like.
        tenure: The driver's right to write.
    """

    root: Path
    view: str
    keys: tuple[str, ...]
    schema: pa.Schema
    version: int
    anew: bool
    expectations: tuple[Expectation, ...] = ()
    tenure: Tenure | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes all batches of the one task; yields how many rows were kept, gone, and failed."""
        given = list(batches)
        rows = (
            pa.Table.from_batches(given).cast(self.schema) if given else self.schema.empty_table()
        )
        table = DerivedTable(self.root, self.view, self.keys)
        sieve = Sieve(self.view, self.expectations)
        try:
            with writing(self.tenure):
                kept, gone = table.write(sieve.marked(rows), self.version, anew=self.anew)
        except ProjectionError as error:
            raise FaultError(error) from None
        written = {"kept": [kept], "gone": [gone], "failed": [list(sieve.failed.items())]}
        yield pa.RecordBatch.from_pydict(written, schema=_WRITTEN)


@dataclass(slots=True)
class DerivedKeeper:
    """Keeps one derived view.

    Attributes:
        tables: Folder of the tables.
        view: The view.
        versions: Reads the tables.
        versions_of_few: Reads them where they have few rows, in a session made for those.
        failed: Rows computed so far that did not meet an expectation, by its name.
        tenure: The driver's right to write.
    """

    tables: Path
    view: DerivedView
    versions: TableVersions
    versions_of_few: TableVersions | None = None
    failed: Counter[str] = field(default_factory=Counter)
    tenure: Tenure | None = None
    _analysed: dict[bool, tuple[Any, Derivation]] = field(default_factory=dict)

    @property
    def explanation(self) -> Explanation | None:
        """How the view is kept; None before its inputs were seen."""
        return next((known.explain() for _, known in self._analysed.values()), None)

    def keep(
        self,
        version: PublishedVersion,
        known: Mapping[str, TableVersion],
        own: TableVersion | None,
    ) -> TableVersion | None:
        """Brings the view to a boundary.

        Args:
            version: The boundary.
            known: The tables of all views there, as far as they are whole.
            own: The view's table, as it was published last; None if it never was.

        Returns:
            The view's table there; None while an input is not whole yet.

        Raises:
            DerivationError: The query cannot be kept.
            PySparkException: Spark cannot run it.
        """
        view = self.view
        if not known.keys() >= set(view.inputs):
            return None
        wanted = {name: known[name].version for name in view.inputs}
        query = _fingerprint(view)
        if own is not None and (own.query, own.epoch) == (query, version.epoch):
            changed = {name for name in wanted if own.made_from.get(name) != wanted[name]}
        else:
            own, changed = None, set(wanted)
        if changed or own is None:
            self._bring(version, wanted, changed, own)
        table = DeltaTable(self.tables / view.name).version()
        # no newer than the oldest that it is made from
        epoch, lsn = min((known[name].epoch, known[name].lsn) for name in view.inputs)
        return TableVersion(table, epoch, lsn, wanted, query)

    def _bring(
        self,
        version: PublishedVersion,
        wanted: Mapping[str, int],
        changed: set[str],
        own: TableVersion | None,
    ) -> None:
        versions = self._reader(wanted)
        new = {name: versions.rows(name, at) for name, at in wanted.items()}
        derivation = self._analysis(versions, new)
        number = version.epoch << _LSN_BITS | version.lsn
        if own is not None and isinstance(derivation.strategy, Keyed):
            old = {name: versions.rows(name, own.made_from[name]) for name in wanted}
            try:
                changes = {
                    name: versions.changes(name, own.made_from[name], wanted[name])
                    for name in changed
                }
                keys = gathered(versions.session, affected(derivation, changes, old, new))
            except PySparkException:
                self._whole(versions, derivation, new, number)  # the feed does not reach so far
                return
            if keys.count != 0:
                self._write(outcome(derivation, old, new, keys), number, anew=False)
            return
        self._whole(versions, derivation, new, number)

    def _reader(self, wanted: Mapping[str, int]) -> TableVersions:
        few = self.versions_of_few
        if few is None:
            return self.versions
        counts = [few.count(name, at) for name, at in wanted.items()]
        unknown = None in counts
        return self.versions if unknown or sum(filter(None, counts)) >= _FEW_ROWS else few

    def _whole(
        self,
        versions: TableVersions,
        derivation: Derivation,
        new: Mapping[str, DataFrame],
        number: int,
    ) -> None:
        result = derivation.definition(new)
        path = str(self.tables / self.view.name)
        if DeltaTable.is_deltatable(path):
            stored = versions.session.read.format("delta").load(path)
            if stored.drop(VERSION_COLUMN).schema.simpleString() == result.schema.simpleString():
                self._write(differences(result, stored, self.view.keys), number, anew=False)
                return
        self._write(result.withColumn(DELETED_FIELD, fn.lit(False)), number, anew=True)

    def _write(self, rows: DataFrame, number: int, *, anew: bool) -> None:
        found = to_arrow_schema(rows.schema, timezone="UTC")
        # of a deleted row the keys alone are there
        schema = pa.schema([each.with_nullable(True) for each in found])
        view = self.view
        writer = DerivedWriter(
            self.tables,
            view.name,
            view.keys,
            schema,
            number,
            anew,
            view.expectations,
            self.tenure,
        )
        for row in rows.coalesce(1).mapInArrow(writer.write, _WRITTEN_DDL).collect():
            self.failed.update(row["failed"])

    def _analysis(self, versions: TableVersions, new: Mapping[str, DataFrame]) -> Derivation:
        schemas = {name: frame.schema for name, frame in new.items()}
        key = tuple((name, schema.json()) for name, schema in schemas.items())
        session, few = versions.session, versions is self.versions_of_few
        known = self._analysed.get(few)
        if known is not None and known[0] == key:
            return known[1]
        definition = self._definition(session)
        read = {name: schemas[name] for name in schemas if name in _inputs(definition, schemas)}
        derivation = analyse(session, definition, read, self.view.keys)
        self._analysed[few] = key, derivation  # of other columns: they do not come back
        return derivation

    def _definition(self, session: SparkSession) -> Any:
        view = self.view
        if view.sql is not None:
            return definition_of_sql(session, view.sql)
        function = view.function
        if function is None:
            raise ViewQueryError(f"view {view.name} has no query")
        return lambda frames: function(*[frames[name] for name in view.inputs])

    def result(self, versions: Mapping[str, int]) -> DataFrame:
        """Returns the view's query over its inputs at some versions of their tables."""
        new = {name: self.versions.rows(name, at) for name, at in versions.items()}
        return self._analysis(self.versions, new).definition(new)

    def expected(self, result: DataFrame) -> DataFrame:
        """Returns those rows of a result that the view is to have."""
        expectations = tuple(each for each in self.view.expectations if each.withholds)
        if not expectations:
            return result
        sieve = Sieve(self.view.name, expectations)
        return result.mapInArrow(sieve.passing, result.schema)


def _inputs(definition: Any, schemas: Mapping[str, Any]) -> set[str]:
    return set(getattr(definition, "inputs", schemas))


def _fingerprint(view: DerivedView) -> str:
    """What tells a view's query from another: its text, or that of its function."""
    expected = (str(each) for each in view.expectations)
    said = "\n".join((view.sql or view.text, *view.keys, *view.inputs, *expected))
    return hashlib.sha256(said.encode()).hexdigest()[:16]
