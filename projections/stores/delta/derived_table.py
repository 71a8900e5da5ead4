"""The table of a derived view: the result of its query by key, written without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from projections.common.file_lock import WriterLock
from projections.definition.columns import DELETED_FIELD, VERSION_COLUMN
from projections.errors import DuplicateKeyError, SinkUnavailableError
from projections.stores.delta import key_equality
from projections.stores.delta.merge_columns import assignments
from projections.stores.delta.table_format import (
    CONFIGURATION,
    FEED,
    HOOKS,
    limits,
    maintain,
    schema_of,
    set_limits,
    writing,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_COUNT: Final = "_headwater_count"
_ORIGIN: Final = "headwater.madeFrom"
_SAME_ROWS: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})


class Origin(msgspec.Struct, frozen=True):
    """What rows were computed from; recorded in the commit that wrote them.

    Attributes:
        query: Digest of the view's query.
        tables: Versions of the tables that it read, by physical name.
        epochs: Incarnation of each of their sources.
    """

    query: str
    tables: dict[str, int]
    epochs: dict[str, int]


_ORIGINS: Final = msgspec.json.Decoder(Origin)


class DerivedTable:
    """Keeps the rows of a derived view in the Delta table `<root>/<view>`.

    A single writer passes the recomputed rows of the affected keys at each boundary; repeating a
    write changes nothing. Column `_version` contains the boundary at which a row was last computed.

    Args:
        root: Folder of the tables.
        view: Name of the view.
        keys: Columns that identify a row; NULL is an ordinary value.
    """

    def __init__(self, root: Path, view: str, keys: Sequence[str]) -> None:
        self._path = root / view
        self._lock = WriterLock(root / f".{view}.lock", wait=True)
        self._view = view
        self._keys = tuple(keys)

    def written_after(self, version: int) -> list[Origin | None]:
        """Returns the origins of the writes since a version; None for a write without one.

        Args:
            version: Version of the table.

        Raises:
            DeltaError: The table cannot be read.
        """
        table = DeltaTable(str(self._path))
        count = table.version() - version
        if count <= 0:
            return [None] if count else []
        commits = table.history(count)
        origins: list[Origin | None] = [None] * (count - len(commits))
        for commit in commits:
            text = commit.get(_ORIGIN)
            if text is not None:
                origins.append(_ORIGINS.decode(text))
            elif commit["operation"] not in _SAME_ROWS:
                origins.append(None)
        return origins

    def write(
        self,
        rows: pa.Table,
        version: int,
        *,
        replaces_all: bool = False,
        origin: Origin | None = None,
    ) -> tuple[int, int]:
        """Writes the rows of affected keys.

        Args:
            rows: The view's columns and `_deleted`; a deleted row needs only its keys.
            version: Their boundary.
            replaces_all: Whether they replace all rows of the view.
            origin: The versions of the inputs.

        Returns:
            Number of rows and of deleted keys in `rows`.

        Raises:
            DuplicateKeyError: Two rows have one key.
            SinkUnavailableError: The table cannot be read or written.
        """
        self._require_unique(rows)
        gone = pc.sum(rows[DELETED_FIELD]).as_py() or 0
        stamped = rows.append_column(
            VERSION_COLUMN, pa.array([version] * rows.num_rows, pa.int64())
        )
        try:
            encoded = None if origin is None else msgspec.json.encode(origin).decode()
            properties = CommitProperties(None if encoded is None else {_ORIGIN: encoded})
            with self._lock:
                if replaces_all:
                    self._replace(stamped, properties)
                elif rows.num_rows:
                    self._merge(stamped, properties)
        except (DeltaError, OSError) as error:
            raise SinkUnavailableError(
                f"view {self._view}: its table cannot be read or written",
                detail=type(error).__name__,
            ) from None
        return rows.num_rows - gone, gone

    def _merge(self, rows: pa.Table, properties: CommitProperties) -> None:
        table = DeltaTable(str(self._path))
        schema = schema_of(table)
        set_limits(table, schema)
        gone = f's."{DELETED_FIELD}"'
        every = assignments(name for name in rows.column_names if name != DELETED_FIELD)
        (
            table.merge(
                rows,
                key_equality.condition(rows, self._keys),
                source_alias="s",
                target_alias="t",
                streamed_exec=False,
                commit_properties=properties,
                post_commithook_properties=HOOKS,
                writer_properties=writing(schema),
            )
            .when_matched_delete(gone)
            .when_matched_update(every, f"NOT {gone}")
            .when_not_matched_insert(every, f"NOT {gone}")
            .execute()
        )
        maintain(table, self._path.parent, self._view)

    def _replace(self, rows: pa.Table, properties: CommitProperties) -> None:
        remaining = rows.filter(pc.invert(rows[DELETED_FIELD])).drop_columns([DELETED_FIELD])
        path = str(self._path)
        if not DeltaTable.is_deltatable(path):
            configuration = CONFIGURATION | FEED | limits(remaining.schema)
            DeltaTable.create(path, remaining.schema, configuration=configuration)
        else:
            set_limits(DeltaTable(path), remaining.schema)
        write_deltalake(
            path,
            remaining,
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=properties,
            post_commithook_properties=HOOKS,
            writer_properties=writing(remaining.schema),
        )

    def _require_unique(self, rows: pa.Table) -> None:
        live = rows.filter(pc.invert(rows[DELETED_FIELD])).select(list(self._keys))
        counted = live.append_column(_COUNT, pa.array([1] * live.num_rows, pa.int64()))
        groups = key_equality.grouped(counted, self._keys, [(_COUNT, "sum")])
        several = groups.filter(pc.greater(groups[_COUNT], 1))
        if several.num_rows:
            example: dict[str, Any] = several.slice(0, 1).to_pylist()[0]
            count = example.pop(_COUNT)
            raise DuplicateKeyError(
                f"the key of the view {self._view} does not identify its rows",
                detail=f"keys: {', '.join(self._keys)}; one of them has {count} rows",
                hint="add columns to keys, or group or filter the query so that each key has "
                "one row",
                example=tuple("NULL" if v is None else str(v) for v in example.values()),
            )


def settled(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Decides for each row whether it is deleted.

    Args:
        rows: Columns of a view and `_deleted`; where that is NULL, the row is deleted unless
            another row has its key.
        keys: Columns that identify a row; NULL is an ordinary value.
    """
    deleted = rows[DELETED_FIELD]
    if not deleted.null_count:
        return rows
    known = rows.filter(deleted.is_valid())
    there = set(key_equality.values(known, keys))
    unknown = rows.filter(deleted.is_null())
    lacking = pa.array([key not in there for key in key_equality.values(unknown, keys)], pa.bool_())
    gone = unknown.filter(lacking)
    place = rows.schema.get_field_index(DELETED_FIELD)
    marks = pa.array([True] * gone.num_rows, pa.bool_())
    return pa.concat_tables([gone.set_column(place, rows.schema.field(place), marks), known])
