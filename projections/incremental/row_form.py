"""Derived form: converts rows of a derived view's table, with lists and structs, for sinks.

In search and cache a struct is an object, a list is an array, and a map is an object with its keys
as text; their values have the same form as in a column.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import decode, encoder
from projections.changes.documents import NULL_TEXT, key_text
from projections.changes.row_change import RowChange
from projections.definition.columns import VERSION_COLUMN
from projections.definition.search_options import refuse_unsearchable
from projections.definition.views import Store
from projections.errors import PlanError, UnholdableValueError
from projections.planning.view_plan import Nested, ViewPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from projections.definition.views import DerivedView

    KeyText = Callable[[tuple[object, ...]], str]

_SCHEMA: Final = "derived"
_INTEGERS: Final = {8: "smallint", 16: "smallint", 32: "integer", 64: "bigint"}


def derived_plan(view: DerivedView, source: str, schema: pa.Schema) -> ViewPlan:
    """Binds a derived view to the columns of its table.

    Args:
        view: The view.
        source: Name of its source.
        schema: Columns of its table.

    Raises:
        PlanError: The options of the view do not fit its columns, or a key has a nested type.
    """
    place = TableName(_SCHEMA, view.name)
    fields = [each for each in schema if each.name != VERSION_COLUMN]
    columns = tuple(_column(each) for each in fields)
    nested = {each.name: made for each in fields if (made := _nested(each.type)) is not None}
    table = TableSchema(place, columns, view.keys)
    for name in view.keys:
        if name in nested:
            raise PlanError(
                f"view {view.name}: column {name} cannot be a key",
                detail=table.by_name[name].type_name,
                hint="use simple values as keys: search and cache identify rows by their text",
            )
    view.search.check(view.name, TableSchema(place, (*columns, *_leaves(nested)), view.keys))
    view.cache.check(view.name, table)
    plan = ViewPlan(
        view.name,
        source,
        "",
        table,
        view.keys,
        view.to,
        cache=view.cache,
        search=view.search,
        nested=nested,
    )
    if Store.SEARCH in view.to:
        refuse_unsearchable(view.name, plan.field_names())
    return plan


def form_of(plan: ViewPlan) -> str:
    """Returns a fingerprint of the form in which rows are written."""
    columns = [(c.name, str(c.kind), c.type_name) for c in plan.schema.columns]
    search = sorted((name, repr(option)) for name, option in plan.search.fields.items())
    options = [plan.keys, plan.cache.form, search, plan.search.analyzer, plan.search.analysis]
    encoded = orjson.dumps([columns, options], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(encoded).hexdigest()[:16]


class DerivedForm:
    """Converts rows of a table to changes of a view.

    Args:
        plan: The view.
        schema: Columns of the rows.
    """

    def __init__(self, plan: ViewPlan, schema: pa.Schema) -> None:
        self._plan = plan
        self._nested = [(name, _value_encoder(schema.field(name).type)) for name in plan.nested]
        self._names = [column.name for column in plan.schema.columns]

    def changes(self, rows: pa.Table, version: int) -> list[RowChange]:
        """Converts rows to changes of a version."""
        changes = []
        for row in rows.select(self._names).to_pylist():
            for name, encode in self._nested:
                row[name] = encode(row[name])
            changes.append(RowChange(self._key(row), version, row, 0))
        return changes

    def deletes(self, keys: pa.Table, version: int) -> list[RowChange]:
        """Converts keys to deletes of a version."""
        return [RowChange(self._key(key), version, None, 0) for key in keys.to_pylist()]

    def _key(self, row: Mapping[str, object]) -> tuple[object, ...]:
        return tuple(row[name] for name in self._plan.keys)


def row_key(plan: ViewPlan) -> KeyText:
    """Returns the function that writes a row's key as JSON, as records have keys."""
    columns = _key_columns(plan)
    encode = encoder(TableSchema(plan.schema.table, columns))
    floats = [column.name for column in columns if column.kind is ColumnKind.FLOAT]

    def key_text_of(key: tuple[object, ...]) -> str:
        fields = encode(dict(zip(plan.keys, key, strict=True)))
        for name in floats:
            fields[name] = None if fields[name] is None else str(fields[name])
        return orjson.dumps(fields).decode()

    return key_text_of


def key_of(plan: ViewPlan, text: str) -> tuple[object, ...]:
    """Returns the key that `row_key` wrote.

    Raises:
        KeyError: It lacks a column of the view's key.
        ValueDecodeError: A value does not fit its column.
    """
    fields = orjson.loads(text)
    return tuple(decode(column, fields[column.name]) for column in _key_columns(plan))


def _key_columns(plan: ViewPlan) -> tuple[Column, ...]:
    return tuple(plan.schema.by_name[name] for name in plan.keys)


def misnamed(plan: ViewPlan, change: RowChange) -> UnholdableValueError | None:
    """Returns why a key has no unique name; nearly every key has one."""
    if change.key != (NULL_TEXT,):
        return None
    return UnholdableValueError(
        f"view {plan.name}: a key has the text that represents NULL",
        detail=NULL_TEXT,
        hint="add a column to the view's keys",
    )


def _leaves(nested: Mapping[str, Nested], above: str = "") -> list[Column]:
    leaves = []
    for name, each in nested.items():
        path = f"{above}{name}"
        for column in each.columns:
            if column.name not in each.inner:
                dotted = f"{path}.{column.name}"
                leaves.append(Column(dotted, column.kind, column.type_name))
        leaves += _leaves(each.inner, f"{path}.")
    return leaves


def _column(field: pa.Field) -> Column:
    name, kind = field.name, field.type
    if pa.types.is_decimal(kind):
        text = f"numeric({kind.precision},{kind.scale})"
        return Column(name, ColumnKind.NUMERIC, text, kind.precision, kind.scale)
    if pa.types.is_integer(kind):
        return Column(name, ColumnKind.INTEGER, _INTEGERS[kind.bit_width])
    if pa.types.is_timestamp(kind):
        column_kind = ColumnKind.TIMESTAMP if kind.tz is None else ColumnKind.TIMESTAMPTZ
        return Column(name, column_kind, str(column_kind))
    for holds, column_kind in _KINDS:
        if holds(kind):
            return Column(
                name,
                column_kind,
                str(kind) if column_kind is ColumnKind.NESTED else str(column_kind),
            )
    raise PlanError(f"column {name} has a type that no store supports", detail=str(kind))


def _nested(kind: pa.DataType) -> Nested | None:
    if _is_list(kind):
        inner = _nested(kind.value_type)
        if inner is not None:
            return Nested(many=True, columns=inner.columns, inner=inner.inner, value=inner.value)
        return Nested(many=True, value=_column(pa.field("value", kind.value_type)))
    if pa.types.is_struct(kind):
        inner_columns = {
            each.name: inner for each in kind if (inner := _nested(each.type)) is not None
        }
        return Nested(
            many=False, columns=tuple(_column(each) for each in kind), inner=inner_columns
        )
    return Nested(many=False) if pa.types.is_map(kind) else None


def _value_encoder(kind: pa.DataType) -> Callable[[Any], Any]:
    """Returns the function that converts a value to JSON form; NULL becomes None."""
    encode: Callable[[Any], Any]
    if pa.types.is_struct(kind):
        parts = [(each.name, _value_encoder(each.type)) for each in kind]

        def encode(value: Any) -> Any:
            return {name: part(value[name]) for name, part in parts}
    elif _is_list(kind):
        item = _value_encoder(kind.value_type)

        def encode(value: Any) -> Any:
            return [item(each) for each in value]
    elif pa.types.is_map(kind):
        key, value_of = _value_encoder(kind.key_type), _value_encoder(kind.item_type)

        def encode(value: Any) -> Any:
            return {key_text([key(name)]): value_of(each) for name, each in value}
    else:
        plain = encoder(TableSchema(TableName(_SCHEMA, ""), (_column(pa.field("v", kind)),)))

        def encode(value: Any) -> Any:
            return plain({"v": value})["v"]

    return lambda value: None if value is None else encode(value)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


_KINDS: Final[Sequence[tuple[Callable[[pa.DataType], bool], ColumnKind]]] = (
    (_is_text, ColumnKind.TEXT),
    (pa.types.is_boolean, ColumnKind.BOOLEAN),
    (pa.types.is_floating, ColumnKind.FLOAT),
    (pa.types.is_date, ColumnKind.DATE),
    (_is_bytes, ColumnKind.BYTES),
    (lambda kind: _nested(kind) is not None, ColumnKind.NESTED),
)
