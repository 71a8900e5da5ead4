"""The expected rows of a view: from the source, or from the table of a derived view.

Also the quarantined keys of a view: their differences are already explained.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
import psycopg

from cdc.errors import CdcError
from cdc.snapshot import read_point
from cdc.values import decode, encoder
from projections.changes.documents import DocumentForm, key_text, key_values, source_key
from projections.changes.row_batch import parts
from projections.errors import VerificationError
from projections.incremental.delivery import DerivedDelivery
from projections.verification.source_batches import SourceBatches, supported
from projections.verification.source_rows import SourceRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cdc.lsn import Lsn
    from projections.changes.row_batch import RowPart
    from projections.common.throttle import Throttle
    from projections.definition.views import Store
    from projections.planning.view_plan import ViewPlan
    from projections.publishing.published_content import TableVersion
    from projections.verification.wait import PositionWaiter

    Document = Mapping[str, Any]

_WRITERS_S: Final = 10.0
"""Longest wait for transactions that may have written to a table. They usually end within
milliseconds; while one stays open, differing keys are reported as moving."""

_IDLE: Final = """
SELECT pid FROM pg_stat_activity WHERE pid = ANY (%s) AND state LIKE 'idle in transaction%%'
"""


class Truth(Protocol):
    """The expected rows of one view; used by one thread."""

    @property
    def withheld(self) -> int:
        """Returns the number of rows read that the view excludes."""
        ...

    def begin(self) -> Lsn:
        """Returns a position at or after which everything is read from now on."""
        ...

    def parts(self) -> Iterator[RowPart]:
        """Yields all rows, some thousand at a time."""
        ...

    def batches(self) -> SourceBatches | None:
        """Returns all rows as a table would store them; None if that is not possible."""
        ...

    def settle(self) -> bool:
        """Waits until this session sees all that a view may show now; returns whether it does."""
        ...

    def of_keys(self, keys: Sequence[str]) -> tuple[dict[str, Document], Lsn]:
        """Returns the rows of some keys, by text.

        Returns:
            The rows by key, and the position that a view must have applied to have them.
        """
        ...


class SourceTruth:
    """Expected rows from a view's table in the source.

    Args:
        connection: From `source_rows.session_of`.
        plan: The view; its rows have keys.
        reach: Waits for positions of its source.
        throttle: The verification's throttle.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        plan: ViewPlan,
        reach: PositionWaiter,
        throttle: Throttle,
    ) -> None:
        self._connection = connection
        self._plan = plan
        self._reach = reach
        self._throttle = throttle
        self._columns = [plan.schema.by_name[name] for name in plan.keys]
        self._rows = SourceRows(connection, plan)

    @property
    def withheld(self) -> int:
        """See `Truth.withheld`."""
        return self._rows.withheld

    def begin(self) -> Lsn:
        """See `Truth.begin`."""
        self._rows = SourceRows(self._connection, self._plan)
        return self._reach.end()

    def parts(self) -> Iterator[RowPart]:
        """See `Truth.parts`; each part is one statement."""
        last = None
        while True:
            chunk = self._rows.chunk(last)
            if chunk.last is None:
                return
            last = chunk.last
            yield chunk.part

    def batches(self) -> SourceBatches | None:
        """See `Truth.batches`; each range is one statement."""
        if not supported(self._connection, self._plan):
            return None
        return SourceBatches(self._connection, self._plan)

    def settle(self) -> bool:
        """See `Truth.settle`.

        A transaction that waits for its client has no commit in the log that other sessions do not
        see.
        """
        deadline = time.monotonic() + _WRITERS_S
        roots = self._roots()
        waited_for: dict[str, int | None] = {}
        for root in roots:
            waited_for |= read_point.writers(self._connection, root)
        while waited_for:
            pids = [pid for pid in waited_for.values() if pid is not None]
            idle = {pid for (pid,) in self._connection.execute(_IDLE, (pids,)).fetchall()}
            now: dict[str, int | None] = {}
            for root in roots:
                now |= read_point.writers(self._connection, root)
            waited_for = {
                xid: pid for xid, pid in waited_for.items() if xid in now and pid not in idle
            }
            if waited_for:
                if time.monotonic() > deadline or self._throttle.stopped:
                    return False
                self._throttle.rest(0.01)
        return True

    def of_keys(self, keys: Sequence[str]) -> tuple[dict[str, Document], Lsn]:
        """See `Truth.of_keys`."""
        wanted = [source_key(key_values(key, self._columns), self._columns) for key in keys]
        withheld = self._rows.withheld
        documents: dict[str, Document] = {
            named(self._plan, row): row for row in self._rows.of_keys(wanted)
        }
        self._rows.withheld = withheld
        # after the rows: a truncated table is empty at once, regardless of the snapshot
        return documents, self._reach.end()

    def _roots(self) -> list[int]:
        """Returns the oids of the tables that contain the view's rows."""
        roots = (
            read_point.oid(self._connection, schema.table) for schema in self._plan.topics.values()
        )
        return [root for root in roots if root is not None]


class TableTruth:
    """Expected rows from a derived view's table, at the published version.

    Args:
        tables: Folder of the tables.
        plan: The view.
        published: Returns the published version.
    """

    withheld = 0

    def __init__(
        self, tables: Path, plan: ViewPlan, published: Callable[[], TableVersion | None]
    ) -> None:
        self._tables = tables
        self._plan = plan
        self._published = published
        self._form = DocumentForm(plan)

    def begin(self) -> Lsn:
        """See `Truth.begin`."""
        return self._newest().applied_through

    def parts(self) -> Iterator[RowPart]:
        """See `Truth.parts`."""
        yield from self._parts(self._newest().version)

    def batches(self) -> None:
        """See `Truth.batches`."""

    def settle(self) -> bool:
        """See `Truth.settle`: a version is published before it is delivered to any store."""
        return True

    def of_keys(self, keys: Sequence[str]) -> tuple[dict[str, Document], Lsn]:
        """See `Truth.of_keys`."""
        newest, wanted = self._newest(), set(keys)
        documents: dict[str, Document] = {}
        for part in self._parts(newest.version):
            documents |= {
                key: row
                for key, row in zip(part.keys(self._plan.keys), part.documents(), strict=True)
                if key in wanted
            }
        return documents, newest.applied_through

    def _parts(self, version: int) -> Iterator[RowPart]:
        delivery = DerivedDelivery(self._tables, self._plan, version, 0, None)
        for part in delivery.changes():
            yield from parts(
                self._plan, (self._form.fields(change.row) for change in part if change.row)
            )

    def _newest(self) -> TableVersion:
        published = self._published()
        if published is None:
            raise VerificationError(
                f"view {self._plan.name} is no longer published",
                hint="headwater view status shows why it is not maintained",
            )
        return published


def named(plan: ViewPlan, document: Document) -> str:
    """Returns the text of a row's key."""
    return key_text([document.get(name) for name in plan.keys])


_WAITING: Final = """
SELECT DISTINCT key FROM headwater.quarantine
 WHERE view = %s AND store = %s AND state <> 'superseded'
"""


def keys(connection: psycopg.Connection[Any], plan: ViewPlan, store: Store) -> frozenset[str]:
    """Returns the texts of a view's keys with a quarantined or dropped record in a store.

    Args:
        connection: To the source, in autocommit.
        plan: The view; its rows have keys.
        store: The store.
    """
    try:
        rows = connection.execute(_WAITING, (plan.name, str(store))).fetchall()
    except psycopg.errors.UndefinedTable:
        return frozenset()  # nothing was ever captured here
    texts = (_named(plan, key) for (key,) in rows)
    return frozenset(key for key in texts if key is not None)


def _named(plan: ViewPlan, record_key: str) -> str | None:
    columns = [plan.schema.by_name[name] for name in plan.keys]
    try:
        fields = orjson.loads(record_key)
        values = fields if isinstance(fields, dict) else {}
        if len(columns) != len(values):
            return None  # from a time when the table had other columns, or no key at all
        pairs = zip(columns, values.values(), strict=True)
        row = {column.name: decode(column, value) for column, value in pairs}
        schema = type(plan.schema)(plan.schema.table, tuple(columns))
        return key_text(list(encoder(schema)(row).values()))
    except (orjson.JSONDecodeError, CdcError):
        return None
