"""Maintains derived views at a boundary: finds changes of inputs, and updates the rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_schema

from cdc.position import version_of
from projections.definition.columns import DELETED_FIELD, VERSION_COLUMN
from projections.definition.views import view_of
from projections.errors import ProjectionError, ViewQueryError
from projections.incremental.analysis.pruning import columns_in_order
from projections.incremental.analysis.strategy import Keyed
from projections.incremental.expectation_filter import ExpectationFilter
from projections.incremental.spark.affected_keys import gathered
from projections.incremental.spark.analysis import analyse, keyed
from projections.incremental.spark.derived_writer import WRITTEN_DDL, DerivedWriter
from projections.incremental.spark.full_diff import differences, doubled_keys
from projections.incremental.spark.map_in_arrow import map_in_arrow
from projections.incremental.spark.pattern_matching import matches_of
from projections.incremental.spark.percolator import percolated
from projections.incremental.spark.pruned_inputs import near
from projections.incremental.spark.recompute_keys import affected, outcome, within
from projections.incremental.spark.recompute_suffix import onward, touched
from projections.incremental.spark.sql_query import definition_of_sql
from projections.publishing.other_sources import other_positions, own_position
from projections.publishing.published_content import TableVersion
from projections.stores.delta.derived_table import DerivedTable, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from projections.common.driver_lock import DriverToken
    from projections.definition.operators.time_bounds import Extent
    from projections.definition.views import DerivedView
    from projections.incremental.analysis.strategy import Explanation
    from projections.incremental.spark.analysis import Derivation
    from projections.incremental.spark.pruned_inputs import PrunedInputs
    from projections.incremental.spark.table_reader import TableVersions
    from projections.publishing.published_content import PublishedVersion

_FEW_ROWS: Final = 1_000_000
"""Minimum number of rows of all inputs for which compiling the query saves time."""
_MANY_ROWS: Final = 4_000_000
"""Minimum number of rows of an input for which two Spark jobs that determine how far changes reach
cost less than reading their groups from the beginning."""
_OWN: Final = ""
"""Stands for the maintaining job's own source, among epochs."""


@dataclass(slots=True)
class DerivedMaintainer:
    """Maintains one derived view.

    Attributes:
        tables: Folder of the tables.
        view: The view.
        versions: Reads the tables.
        versions_of_few: Reads tables with few rows, in a session configured for those.
        failed: Rows computed so far that did not meet an expectation, by its name.
        onward_rows_min: Minimum number of rows of an input for which a view along its groups' time
            is recomputed from the first change onward, instead of by whole groups.
        identities: Columns that identify the rows of a table, where known, by physical name.
    """

    tables: Path
    view: DerivedView
    versions: TableVersions
    versions_of_few: TableVersions | None = None
    failed: Counter[str] = field(default_factory=Counter)
    driver_token: DriverToken | None = None
    onward_rows_min: int = _MANY_ROWS
    identities: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _analysed: dict[bool, tuple[Any, Derivation]] = field(default_factory=dict)
    _suited: Any = None
    _origin: Origin | None = None
    _written: int | None = None

    @property
    def explanation(self) -> Explanation | None:
        """Returns how the view is maintained; None before its inputs were analysed."""
        known = next((each for _, each in self._analysed.values()), None)
        if known is None:
            return None
        explanation = known.explain()
        identities = {view_of(name): columns for name, columns in self.identities.items()}
        return replace(
            explanation, near=columns_in_order(known.anchors, explanation.by, identities)
        )

    def maintain(  # noqa: PLR0913  # the parts of one boundary
        self,
        version: PublishedVersion,
        known: Mapping[str, TableVersion],
        own: TableVersion | None,
        physical_names: Mapping[str, str] | None = None,
        *,
        whole: bool = False,
        others: Mapping[str, str] | None = None,
    ) -> TableVersion | None:
        """Brings the view to a boundary.

        Args:
            version: The boundary.
            known: The tables of all complete views at the boundary, by physical name.
            own: The last published version of the view's table; None if there is none.
            physical_names: Physical names that differ from the view's name. If an input's differs
                from the one that the view was computed from, the view is recomputed.
            whole: Whether the table may have been altered: all rows are then computed and compared.
            others: Source of each table that does not belong to the boundary's own source.

        Returns:
            The view's table at the boundary; None while an input is incomplete.

        Raises:
            DerivationError: The view cannot be maintained.
            PySparkException: Spark cannot run it.
        """
        view = self.view
        read = [(physical_names or {}).get(name, name) for name in view.inputs]
        if not known.keys() >= set(read):
            return None
        wanted = {physical_name: known[physical_name].version for physical_name in read}
        query = view.fingerprint
        vector = other_positions(read, known, others or {})
        same = own is not None and own.query in view.fingerprints and own.epoch == version.epoch
        epochs = {source: position.epoch for source, position in vector.items()}
        self._origin = Origin(query, wanted, epochs | {_OWN: version.epoch})
        if own is not None and same and self._goes_on(own, self._origin):
            changed = {name for name in wanted if own.made_from[name] != wanted[name]}
        else:
            own, changed = None, set(wanted)
        if whole:
            self._mend(version, wanted)
        elif changed or own is None or self._suited is None:
            self._bring(version, wanted, changed, own)
        self._written = table = DeltaTable(self.tables / view.name).version()
        # the boundary of its oldest input
        at = own_position(read, known, others or {})
        return TableVersion(table, at.epoch, at.lsn, wanted, query, vector)

    def _goes_on(self, own: TableVersion, now: Origin) -> bool:
        """Returns whether applying the changes since the published version is enough.

        Versions of a recreated table cannot be compared: its epoch or its source differs, or its
        versions go back. Applying changes is also not enough if a killed job wrote a version after
        the published one from other inputs.
        """
        epochs = {source: position.epoch for source, position in own.others.items()}
        if epochs | {_OWN: own.epoch} != now.epochs:
            return False
        before, last = own.made_from, self._written
        if before.keys() != now.tables.keys() or not _between(before, now.tables, now.tables):
            return False
        self._written = None  # until this boundary is written
        if last == own.version:
            return True
        table = DerivedTable(self.tables, self.view.name, self.view.keys)
        return all(
            written is not None
            and written.query in self.view.fingerprints
            and written.epochs == now.epochs
            and written.tables.keys() == before.keys()
            and _between(before, written.tables, now.tables)
            for written in table.written_after(own.version)
        )

    def _bring(
        self,
        version: PublishedVersion,
        wanted: Mapping[str, int],
        changed: set[str],
        own: TableVersion | None,
    ) -> None:
        versions = self._reader(wanted)
        new = _rows(versions, wanted)
        derivation = self._analysis(versions, new)
        number = number_of(version)
        if own is not None and self._suits(versions, derivation, new):
            if not changed:
                return
            along = self.view.along
            if isinstance(derivation.strategy, Keyed) or (along is not None and not along.by):
                between = {name: (own.made_from[name], wanted[name]) for name in changed}
                self._affected(versions, derivation, new, between, own, number)
                return
        self._whole(versions, derivation, new, number)
        self._suited = self._form(versions)

    def _affected(  # noqa: PLR0913, PLR0917  # the inputs of one boundary
        self,
        versions: TableVersions,
        derivation: Derivation,
        new: Mapping[str, DataFrame],
        changed: Mapping[str, tuple[int, int]],
        own: TableVersion,
        number: int,
    ) -> None:
        """Updates only the keys that changes affect."""
        stored, read = partial(self._stored, versions), new
        try:
            changes = {
                view_of(physical_name): versions.changes(physical_name, *between)
                for physical_name, between in changed.items()
            }
            if (extent := self._along(versions, changed)) is not None:
                (rows,), (changes_of_it,) = new.values(), changes.values()
                keys = touched(extent, changes_of_it, stored())
            else:
                derivation = self._kept(derivation, set(changes))
                old = _rows(versions, own.made_from)
                if (nearby := self._near(versions, derivation, own, changed)) is not None:
                    old, read = nearby.of(old), nearby.of(new)
                affected_rows = affected(derivation, changes, old, read, nearby)
                keys = gathered(versions.session, affected_rows)
        except (PySparkException, Py4JJavaError):
            self._whole(versions, derivation, new, number)  # the feed does not reach back that far
            return
        try:
            if keys.count != 0:
                self._write(
                    outcome(
                        derivation, within(self.view.span, derivation, read, keys), keys, stored
                    )
                    if extent is None
                    else onward(derivation, extent, rows, keys, stored()),
                    number,
                    replaces_all=False,
                )
        finally:
            keys.release()

    def _near(
        self,
        versions: TableVersions,
        derivation: Derivation,
        own: TableVersion,
        changed: Mapping[str, tuple[int, int]],
    ) -> PrunedInputs | None:
        """Returns the part of the inputs to read, if changes are few and it can be determined."""
        if not derivation.anchors:
            return None
        few = {
            view_of(physical_name): few_rows.rows
            for physical_name, between in changed.items()
            if (few_rows := versions.few_changes(physical_name, *between)) is not None
        }
        if len(few) < len(changed):
            return None
        known = {
            view_of(name): self.identities[name]
            for name in own.made_from
            if name in self.identities
        }
        return near(derivation, keyed(derivation).by, known, few)

    def _stored(self, versions: TableVersions) -> DataFrame:
        """Returns all rows of the view's table now."""
        name = self.view.name
        return versions.rows(name, DeltaTable(self.tables / name).version())

    def _along(
        self, versions: TableVersions, changed: Mapping[str, tuple[int, int]]
    ) -> Extent | None:
        """Determines how far changes reach, where that pays."""
        along = self.view.along
        if along is None or not along.by:  # if all rows form one group, this is the only way
            return along
        ((physical_name, (_, now)),) = changed.items()  # nothing else is read
        count = versions.count(physical_name, now)
        return along if count is None or count >= self.onward_rows_min else None

    def _mend(self, version: PublishedVersion, wanted: Mapping[str, int]) -> None:
        """Repairs the table, regardless of its state."""
        versions = self._reader(wanted)
        new = _rows(versions, wanted)
        derivation, number = self._analysis(versions, new), number_of(version)
        # a merge treats duplicate rows of a key alike
        if self._doubled(versions):
            result = derivation.definition(new)
            self._write(result.withColumn(DELETED_FIELD, fn.lit(False)), number, replaces_all=True)
        else:
            self._whole(versions, derivation, new, number)
        self._suited = self._form(versions)

    def _doubled(self, versions: TableVersions) -> bool:
        """Returns whether the table has two rows of one key."""
        path = str(self.tables / self.view.name)
        if not DeltaTable.is_deltatable(path):
            return False
        stored = versions.session.read.format("delta").load(path)
        if not set(self.view.keys) <= set(stored.columns):
            return False  # the table is then written completely
        return doubled_keys(stored, self.view.keys).head() is not None

    def _kept(self, derivation: Derivation, changed: set[str]) -> Derivation:
        """Returns the strategy for a change of these inputs.

        A single changed input is traced only to columns that identify its rows, if the view has
        these: the recomputation finds the other rows that belong to them.
        """
        if len(changed) > 1:
            return derivation
        (name,) = changed
        alone = derivation.for_changes_of(name)
        own, known = keyed(alone).own.get(name), self.view.identities.get(name)
        there = own is not None and known and set(known) <= set(own.columns.values())
        return alone if there else derivation

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
            if _alike(stored, result):
                self._write(differences(result, stored, self.view.keys), number, replaces_all=False)
                return
        self._write(result.withColumn(DELETED_FIELD, fn.lit(False)), number, replaces_all=True)

    def _suits(
        self, versions: TableVersions, derivation: Derivation, new: Mapping[str, DataFrame]
    ) -> bool:
        """Returns whether the table has the present columns and types of its query.

        A widened input has values that the table would round or truncate. This is checked once for
        each schema of the inputs.
        """
        form = self._form(versions)
        if form != self._suited:
            stored = versions.session.read.format("delta").load(str(self.tables / self.view.name))
            if not _alike(stored, derivation.definition(new)):
                return False
            self._suited = form
        return True

    def _form(self, versions: TableVersions) -> Any:
        """Returns the schema of the inputs at the last analysis."""
        form, _ = self._analysed[versions is self.versions_of_few]
        return form

    def _write(self, rows: DataFrame, number: int, *, replaces_all: bool) -> None:
        arrow_schema = to_arrow_schema(rows.schema, timezone="UTC")
        # a deleted row only has its keys
        schema = pa.schema([each.with_nullable(True) for each in arrow_schema])
        view = self.view
        writer = DerivedWriter(
            self.tables,
            view.name,
            view.keys,
            schema,
            number,
            replaces_all,
            view.expectations,
            self.driver_token,
            self._origin,
        )
        for row in map_in_arrow(rows.coalesce(1), writer.write, WRITTEN_DDL).collect():
            self.failed.update(row["failed"])

    def _analysis(self, versions: TableVersions, new: Mapping[str, DataFrame]) -> Derivation:
        schemas = {name: frame.schema for name, frame in new.items()}
        key = tuple((name, schema.json()) for name, schema in schemas.items())
        session, few = versions.session, versions is self.versions_of_few
        known = self._analysed.get(few)
        if known is not None and known[0] == key:
            return known[1]
        definition = definition_of(self.view, session)
        read = {name: schemas[name] for name in schemas if name in inputs_of(definition, schemas)}
        derivation = analyse(session, definition, read, self.view.keys)
        self._analysed[few] = key, derivation  # replaces the one of other columns
        return derivation

    def result(self, versions: Mapping[str, int]) -> DataFrame:
        """Computes the view's query at some versions of its inputs.

        Args:
            versions: Versions by physical name; see `TableVersion.made_from`.
        """
        new = _rows(self.versions, versions)
        return self._analysis(self.versions, new).definition(new)

    def expected(self, result: DataFrame) -> DataFrame:
        """Filters a result by the view's expectations."""
        expectations = tuple(each for each in self.view.expectations if each.withholds)
        if not expectations:
            return result
        expectation_filter = ExpectationFilter(self.view.name, expectations)
        return map_in_arrow(result, expectation_filter.passing, result.schema)


def number_of(version: PublishedVersion) -> int:
    """Returns a boundary as a row version."""
    return version_of(version.epoch, version.lsn)


def definition_of(view: DerivedView, session: SparkSession) -> Any:
    """Returns the query of a view as a function of its inputs' frames, by name.

    Raises:
        ViewQueryError: The view has no query, or its text is not a query.
    """
    if view.sql is not None:
        return definition_of_sql(session, view.sql)
    if view.pattern is not None:
        query, (rows,) = view.pattern, view.inputs
        return lambda frames: matches_of(frames[rows], query, view.name)
    if view.percolation is not None:
        percolation, (documents, queries) = view.percolation, view.inputs
        return lambda frames: percolated(frames[documents], frames[queries], percolation)
    if view.function is None:
        raise ViewQueryError(f"view {view.name} has no query")
    return partial(_of_function, view, view.function)


def _of_function(
    view: DerivedView, function: Callable[..., Any], frames: Mapping[str, DataFrame]
) -> DataFrame:
    """Calls the function of a view; an error in it affects that view only."""
    try:
        made = function(*[frames[name] for name in view.inputs])
    except (ProjectionError, PySparkException, Py4JError):
        raise
    except Exception as error:
        raise ViewQueryError(
            f"the function of view {view.name} raises",
            detail=f"{type(error).__name__}: {error}"[:300],
            hint="correct it; until then the view stays at its last boundary",
        ) from error
    if not isinstance(made, DataFrame):
        raise ViewQueryError(
            f"the function of view {view.name} returns no DataFrame",
            detail=type(made).__name__,
            hint="it describes the result: return orders.groupBy(...).agg(...)",
        )
    return made


def inputs_of(definition: Any, there: Iterable[str]) -> set[str]:
    """Returns the inputs of a query among the available views."""
    return set(getattr(definition, "inputs", there))


def _rows(versions: TableVersions, of_tables: Mapping[str, int]) -> dict[str, DataFrame]:
    """Returns the rows of tables, given by physical name and version, by view."""
    return {view_of(name): versions.rows(name, at) for name, at in of_tables.items()}


def _between(first: Mapping[str, int], tables: Mapping[str, int], last: Mapping[str, int]) -> bool:
    """Returns whether tables' versions are within the range of two others."""
    return all(first[name] <= at <= last[name] for name, at in tables.items())


def _alike(stored: DataFrame, result: DataFrame) -> bool:
    """Returns whether a stored table has the columns and types of a result."""
    return stored.drop(VERSION_COLUMN).schema.simpleString() == result.schema.simpleString()
