"""Views of tables without a key: counts equal rows, between two positions.

Rows of such a table are inserted and never changed, and in a view each has the version of its
insert. Take the end of the log, A, and wait until all transactions have ended that had written to
the table by then; take a snapshot S; take the end of the log again, B. S contains every row
inserted before A, and none inserted after B. Once the view has applied everything up to B, equal
rows are counted as often as they occur:

- a row that the view has up to A is in S; otherwise it is extra;
- a row of S is in the view up to B; otherwise it is missing;
- a row between A and B that is not in S is moving.

A snapshot of the whole table gives all rows new versions. If one has begun since A, there is no
result this time.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from cdc.lsn import Lsn
from cdc.position import ChangePosition
from cdc.snapshot import read_point, reads
from projections.changes.row_batch import source_columns
from projections.verification.recheck import RecheckOutcome, hash_of
from projections.verification.report import KeyVerdict
from projections.verification.source_rows import SourceRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from projections.changes.row_batch import RowPart
    from projections.changes.sink import Sink
    from projections.common.throttle import Throttle
    from projections.definition.views import Store
    from projections.planning.view_plan import ViewPlan
    from projections.verification.wait import PositionWaiter

_ROWS_PER_STEP: Final = 5_000
_WRITERS_S: Final = 30.0
_BEGUN: Final = """
SELECT max(read_lsn)::text FROM headwater.snapshots
 WHERE source = %s AND table_schema = %s AND table_name = %s
   AND predicate IS NULL AND keys IS NULL
"""


class KeylessPass:
    """Compares one view of a table without a key in several stores.

    Args:
        connection: From `source_rows.session_of`; it is in a transaction while rows are read.
        other: Another session, in autocommit.
        plan: The view.
        reach: Waits for positions of its source.
        throttle: The verification's throttle.
        resting: Whether nothing is written and everything is applied.

    Attributes:
        position: The position through which the view is compared, once all is read.
        rows: Number of rows that it should have.
        withheld: Number of rows that the view excludes.
        void: Whether there is no result for some store this time.
    """

    def __init__(  # noqa: PLR0913  # the parts of a pass
        self,
        connection: psycopg.Connection[Any],
        other: psycopg.Connection[Any],
        plan: ViewPlan,
        reach: PositionWaiter,
        throttle: Throttle,
        *,
        resting: bool,
    ) -> None:
        self.position = Lsn(0)
        self.rows = self.withheld = 0
        self.void = False
        self._connection = connection
        self._other = other
        self._plan = plan
        self._reach = reach
        self._throttle = throttle
        self._resting = resting
        self._expected: Counter[bytes] = Counter()
        self._through = Lsn(0)
        self._settled = True

    def read(self) -> Iterator[RowPart]:
        """Reads the source; yields its rows, some thousand at a time."""
        root = read_point.oid(self._other, self._plan.schema.table)
        point = read_point.ReadPoint(self._other, root or 0)
        self.position = point.position
        self._settled = self._resting or self._await(point)
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            rows = SourceRows(self._connection, self._plan)
            self._through = self._reach.end()
            for part in rows.every():
                self._expected.update(map(hash_of, part.documents()))
                self.rows += len(part.rows)
                yield part
            self.withheld = rows.withheld

    def compared(self, store: Store, sink: Sink) -> Iterator[RecheckOutcome]:
        """Compares a store with the rows that were read; yields the results so far."""
        self._reach.wait([(self._plan.name, store)], self._through)
        names = source_columns(self._plan)
        low, high = self._version(self.position), self._version(self._through)
        extra: Counter[bytes] = Counter()
        lacking, moving = self._expected.copy(), Counter[bytes]()
        for number, (version, document) in enumerate(sink.versioned(self._plan)):
            row = hash_of({name: document.get(name) for name in names})
            if self._resting or version <= low:
                lacking[row] -= 1
                if lacking[row] < 0:
                    extra[row] += 1
            elif version <= high:
                moving[row] += 1
            if number % _ROWS_PER_STEP == 0:
                yield RecheckOutcome()
        missing = +lacking
        outcome = RecheckOutcome()
        if not self._settled or self._reread():
            self.void = True
            outcome.counts[KeyVerdict.MOVING] = self.rows
        else:
            outcome.counts[KeyVerdict.MISSING] = (missing - moving).total()
            outcome.counts[KeyVerdict.EXTRA] = extra.total()
            outcome.counts[KeyVerdict.MOVING] = (moving - missing).total()
        yield outcome

    def _await(self, point: read_point.ReadPoint) -> bool:
        waited_s = 0.0
        while not point.reached():
            if waited_s > _WRITERS_S or self._throttle.stopped:
                return False
            self._throttle.rest(0.01)
            waited_s += 0.01
        return True

    def _version(self, lsn: Lsn) -> int:
        epoch = 1 if self._resting else reads.epoch_of(self._other, self._plan.source, 1)
        return ChangePosition.of_read(epoch, lsn).version

    def _reread(self) -> bool:
        if self._resting:
            return False
        table = self._plan.schema.table
        asked = self._plan.source, table.schema, table.name
        (begun,) = self._other.execute(_BEGUN, asked).fetchone() or (None,)
        return begun is not None and Lsn.parse(begun) > self.position
