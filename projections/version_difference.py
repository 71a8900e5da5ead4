"""Two versions of a view, compared before readers are moved from one to the other.

The rows of both are those of one boundary, the last that was published: whatever differs is not for
want of time. What the changed definition explains is told apart from what it does not: columns that
only one of them has, and rows that only one of the two definitions lets in. Nothing else may differ
where the definitions differ in nothing else.

A view that stands still because its table has changed is compared as it stands: columns that the
change gave another type, another name or took away are set apart, and rows that were written since
differ.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from cdc.table import TableSchema
from projections import store_turn
from projections.documents import key_text
from projections.errors import VersionBehindError
from projections.plan import HISTORY_COLUMNS, ROW_ID_COLUMN
from projections.published import Published
from projections.sinks.arrow import decoded_rows
from projections.sinks.open import open_sink
from projections.table_difference import Side, TableDifference, compare_sides
from projections.view import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from projections.plan import ViewPlan
    from projections.spec import JobSpec
    from projections.view_definition import DefinitionChange

EXAMPLES: Final = 10
_HASH_BYTES: Final = 16


@dataclass(slots=True)
class VersionDifference:
    """How a version differs from the one that readers see.

    Attributes:
        found: What no definition explains: rows that only one has, and other values.
        at: The boundary at which both were read.
        store: Where they were read.
        explained: By what the definition says, how many rows or columns that explains.
        stands_since: Since when the version that readers see stands still; None if it does not.
    """

    found: TableDifference
    at: str
    store: Store
    explained: dict[str, int] = field(default_factory=dict)
    stands_since: str | None = None

    @property
    def same(self) -> bool:
        """Whether there is nothing but what is explained."""
        return self.found.same


def compare_versions(  # noqa: PLR0913  # two versions, and what is known of both
    connection: psycopg.Connection[Any],
    spec: JobSpec,
    old: ViewPlan,
    new: ViewPlan,
    change: DefinitionChange,
    *,
    still: bool = False,
) -> VersionDifference:
    """Compares a version with the one that readers see.

    A view that has a table is compared there, at its last published boundary. One that has none is
    compared where it is; batches of that store wait meanwhile.

    Args:
        connection: To the source, in autocommit.
        spec: The job.
        old: The version that readers see.
        new: The other one.
        change: How its definition differs.
        still: The version that readers see stands still, since its table has changed.

    Raises:
        VersionBehindError: They have not been published at one boundary yet.
        SinkError: A store cannot be read.
    """
    if Store.TABLE in old.to & new.to:
        compared = _in_tables(spec, old, new, still=still)
    else:
        store = min(old.to & new.to)
        with store_turn.alone(connection, spec.source, [store]):
            compared = _in_store(spec, store, old, new, still=still)
    _set_apart(compared, change, still=still)
    return compared


def _in_tables(spec: JobSpec, old: ViewPlan, new: ViewPlan, *, still: bool) -> VersionDifference:
    tables = spec.addresses.tables
    latest = Published(tables, spec.source).latest()
    sides = {} if latest is None else latest.views
    one, other = sides.get(old.name), sides.get(new.name)
    behind = not still and one and other and (one.epoch, one.lsn) != (other.epoch, other.lsn)
    if one is None or other is None or behind:
        raise VersionBehindError(
            f"{new.name} and {old.name} have not been published at one boundary yet",
            detail=f"{one and one.applied_through} and {other and other.applied_through}",
            hint="the job brings them there: headwater status; then try again",
        )
    retyped = _retyped(old, new) if still else {}
    explained = dict.fromkeys(retyped.values(), 1)
    found = compare_sides(
        _side(tables / old.name, one.version, old, new, explained),
        _side(tables / new.name, other.version, new, old, explained),
        _keys(new),
        examples_max=EXAMPLES,
        left_out=retyped,
    )
    since = str(one.applied_through) if still else None
    at = str(other.applied_through)
    return VersionDifference(found, at, Store.TABLE, explained, since)


def _retyped(old: ViewPlan, new: ViewPlan) -> dict[str, str]:
    """Columns that have another type by now: which one, by their names."""
    now = new.schema.by_name
    return {
        name: f"column {name}: {column.type_name} to {now[name].type_name}"
        for name, column in old.schema.by_name.items()
        if name in now and now[name].type_name != column.type_name
    }


def _side(
    path: Any, version: int, own: ViewPlan, other: ViewPlan, explained: dict[str, int]
) -> Side:
    """A version's rows without those that the other's definition keeps out."""
    withholding = tuple(each for each in other.expectations if each.withholds)
    if not withholding or own.expectations == other.expectations:
        return Side(path, version)
    reads = sorted(other.inspection().columns & own.schema.by_name.keys())
    if set(reads) != other.inspection().columns:
        return Side(path, version)  # what decides there is not here
    return Side(path, version, partial(_let_in, own, other, explained), tuple(reads))


def _let_in(
    own: ViewPlan, other: ViewPlan, explained: dict[str, int], batch: pa.RecordBatch
) -> pa.RecordBatch:
    inspection = other.inspection()
    schema = own.schema
    columns = tuple(each for each in schema.columns if each.name in inspection.columns)
    narrow = replace(own, schema=TableSchema(schema.table, columns, ()))
    kept = []
    for row in decoded_rows(narrow, pa.Table.from_batches([batch])):
        unmet = inspection.unmet(row, counts=False)
        kept.append(unmet is None)
        if unmet is not None:
            said = f"rows that {other.name} keeps out: {unmet.name}"
            explained[said] = explained.get(said, 0) + 1
    return batch.filter(pa.array(kept, pa.bool_()))


def _in_store(
    spec: JobSpec, store: Store, old: ViewPlan, new: ViewPlan, *, still: bool
) -> VersionDifference:
    found = TableDifference(new.keys)
    retyped = _retyped(old, new) if still else {}
    both = [name for name in old.schema.by_name if name in new.schema.by_name]
    common = [name for name in both if name not in retyped]
    found.columns_added = tuple(n for n in new.schema.by_name if n not in both)
    found.columns_gone = tuple(n for n in old.schema.by_name if n not in both)
    with closing(open_sink(store, spec.addresses)) as sink:
        left = {_key(old, each): _hash(each, common) for each in sink.documents(old)}
        for document in sink.documents(new):
            key = _key(new, document)
            hashed = left.pop(key, None)
            if hashed is None:
                found.appeared += 1
                _note(found.examples_appeared, key)
            elif hashed != _hash(document, common):
                found.changed += 1
        found.gone = len(left)
        for key in list(left)[:EXAMPLES]:
            _note(found.examples_gone, key)
    since = "its table has changed" if still else None
    explained = dict.fromkeys(retyped.values(), 1)
    return VersionDifference(found, "a moment without batches", store, explained, since)


def _set_apart(compared: VersionDifference, change: DefinitionChange, *, still: bool) -> None:
    """Takes what definition and table explain out of what was found."""
    found = compared.found
    differing = (*found.columns_added, *found.columns_gone)
    explained = {name for name in differing if still or name in change.columns}
    for name in (each for each in differing if each in explained):
        compared.explained[f"column {name}"] = 1
    found.columns_added = tuple(n for n in found.columns_added if n not in explained)
    found.columns_gone = tuple(n for n in found.columns_gone if n not in explained)


def _keys(plan: ViewPlan) -> tuple[str, ...]:
    if plan.append_only:
        return (ROW_ID_COLUMN,)
    if plan.history is not None:
        return (*plan.keys, HISTORY_COLUMNS[0], HISTORY_COLUMNS[3])
    return plan.keys


def _key(plan: ViewPlan, document: Mapping[str, Any]) -> str:
    if plan.append_only:
        return _hash(document, list(document)).hex()
    return key_text([document.get(name) for name in plan.keys])


def _hash(document: Mapping[str, Any], names: list[str]) -> bytes:
    data = orjson.dumps({name: document.get(name) for name in names})
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()


def _note(examples: list[tuple[object, ...]], key: str) -> None:
    if len(examples) < EXAMPLES:
        examples.append((key,))
