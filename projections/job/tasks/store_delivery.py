"""StoreDelivery: one delivery of a derived view, in one of Spark's workers.

StoreQuarantine: the rows that a store refused, as the driver knows them between deliveries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from projections.changes.quarantine import refused_rows
from projections.changes.quarantine import table as quarantine_table
from projections.changes.quarantine.refused_rows import DeliveredRows
from projections.errors import QuarantineDownError
from projections.job.batch_writer import process_sink
from projections.job.task_edge import crossing
from projections.planning.job_spec import writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from projections.common.driver_lock import DriverToken
    from projections.definition.views import Store
    from projections.incremental.delivery import Delivered, DerivedDelivery
    from projections.planning.job_config import LedgerAddress, StoreAddresses

DELIVERED_DDL: Final = "upserted long, deleted long, refused array<string>, written array<string>"
_DELIVERED: Final = pa.schema(
    [
        ("upserted", pa.int64()),
        ("deleted", pa.int64()),
        ("refused", pa.list_(pa.string())),
        ("written", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class StoreDelivery:
    """A delivery as one of Spark's workers makes it.

    Attributes:
        delivery: The delivery.
        store: The store.
        addresses: Where the stores are.
        ledger: Where the quarantine is.
        driver_token: The driver that may write; None without a cluster.
    """

    delivery: DerivedDelivery
    store: Store
    addresses: StoreAddresses
    ledger: LedgerAddress
    driver_token: DriverToken | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Delivers, and quarantines what is refused; yields counts and the keys concerned.

        The quarantine is committed before the delivery counts as done: one that is killed in
        between is made again, and records the same rows.
        """
        for _ in batches:
            pass
        try:
            with writing(self.driver_token):
                delivered = self.delivery.deliver(process_sink(self.store, self.addresses))
                self._settle(delivered)
        except Exception as error:  # noqa: BLE001  # the edge of the process
            raise crossing(error) from None
        result = {
            "upserted": [delivered.applied.upserted],
            "deleted": [delivered.applied.deleted],
            "refused": [[each.key for each in delivered.refused]],
            "written": [sorted(delivered.written)],
        }
        yield pa.RecordBatch.from_pydict(result, schema=_DELIVERED)

    def _settle(self, delivered: Delivered) -> None:
        delivery = self.delivery
        whole = delivery.writes_all and delivered.complete and delivery.quarantined
        below = delivery.number if whole else 0
        if delivered.refused or delivered.written or below:
            rows = DeliveredRows(delivery.plan.name, delivered.refused, delivered.written, below)
            refused_rows.settle(self.ledger, self.store, rows)


class StoreQuarantine:
    """The quarantined rows of one store's derived views.

    Args:
        ledger: Where the quarantine is.
        store: The store.
    """

    def __init__(self, ledger: LedgerAddress, store: Store) -> None:
        self._ledger = ledger
        self._store = store
        self._states: dict[str, dict[str, str]] | None = None

    def read(self, views: Iterable[str]) -> None:
        """Reads which rows are quarantined; keeps what is known while the source does not answer.

        Raises:
            QuarantineDownError: The source does not answer, and nothing is known yet.
        """
        try:
            with quarantine_table.connect(self._ledger) as connection:
                states = refused_rows.states(connection, self._ledger.source, self._store, views)
        except QuarantineDownError:
            if self._states is None:
                raise
            return
        self._states = {view: dict(of_view) for view, of_view in states.items()}

    def keys(self, view: str) -> frozenset[str]:
        """Returns the keys, as JSON, of a view's quarantined and discarded rows."""
        return frozenset((self._states or {}).get(view, {}))

    def retried(self, view: str) -> frozenset[str]:
        """Returns the keys, as JSON, of the rows that an operator has asked to write again."""
        of_view = (self._states or {}).get(view, {})
        return frozenset(key for key, state in of_view.items() if state == refused_rows.RETRY)

    def record(
        self, delivery: DerivedDelivery, refused: Iterable[str], written: Iterable[str]
    ) -> None:
        """Records the result of a delivery, which the worker has stored.

        Args:
            delivery: The delivery.
            refused: Keys, as JSON, of the rows that the store refused.
            written: Keys, as JSON, that were quarantined and are written.
        """
        if self._states is None:
            self._states = {}
        known = self._states.get(delivery.plan.name, {})
        gone = set(known) if delivery.writes_all else set(written)
        left = {key: state for key, state in known.items() if key not in gone}
        self._states[delivery.plan.name] = left | dict.fromkeys(refused, refused_rows.WAITING)
