"""A pass: compares one view with its expected rows, in steps of some thousand rows.

Nothing is locked between two steps, so a pass may take as long as its budget requires. The stores
of the view share each read of the source.

The ended states of a history are compared with its changes, as the source does not have them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from projections.definition.views import Store
from projections.stores.delta.history.check import HistoryCheck
from projections.stores.delta.sink import WarehouseSink
from projections.verification.cache_indexes import BesidePass
from projections.verification.job_pass import fastest_pass
from projections.verification.key_filter import ComparedRows, differing
from projections.verification.recheck import RecheckOutcome, Rounds, wrong
from projections.verification.report import EXAMPLES, KeyFinding, KeyVerdict, ViewReport
from projections.verification.truth import named

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping
    from pathlib import Path

    from cdc.lsn import Lsn
    from projections.common.throttle import Throttle
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan
    from projections.verification.column_pass import ColumnPass
    from projections.verification.compared_stores import ComparedStores
    from projections.verification.job_pass import JobPass
    from projections.verification.keyless import KeylessPass
    from projections.verification.truth import Truth
    from projections.verification.wait import PositionWaiter

    Document = Mapping[str, Any]

_DIFFERENT: Final = (KeyVerdict.DIFFERENT, KeyVerdict.STALE, KeyVerdict.ENDED)


class ViewPass:
    """Compares one view.

    Args:
        plan: The view.
        stores: Its compared stores; those that fail are left out.
        reach: Waits for positions of its source.
        throttle: The verification's throttle.
        config: The job's configuration.

    Attributes:
        outcomes: The results, by store.
    """

    def __init__(
        self,
        plan: ViewPlan,
        stores: ComparedStores,
        reach: PositionWaiter,
        throttle: Throttle,
        config: JobConfig,
    ) -> None:
        self.outcomes = {store: RecheckOutcome() for store in stores}
        self._plan = plan
        self._stores = stores
        self._reach = reach
        self._throttle = throttle
        self._config = config
        self._through: Lsn | None = None
        self._rows = self._withheld = 0
        cached = Store.CACHE in stores
        self._beside = BesidePass(plan, config.addresses, reach) if cached else None

    def steps(self, truth: Truth, waiting: Callable[[Store], Container[str]]) -> Iterator[None]:
        """Compares rows by their keys.

        Args:
            truth: The expected rows.
            waiting: Returns the quarantined keys of a store.

        Raises:
            VerificationError: The source cannot be read, or the view does not reach the position of
                the read.
            SinkError: A store cannot be read; see `ComparedStores`.
        """
        through = truth.begin()
        suspects: dict[Store, list[str]] = {}
        columns = self._columns(truth)
        if columns is not None:
            with self._stores.each(Store.TABLE):
                yield from columns.steps()
            self._rows, self._withheld = columns.rows, columns.withheld
            suspects[Store.TABLE] = columns.suspects
        if columns is None or columns.unsuited:
            yield from self._by_row(truth, suspects)
        rounds = Rounds(self._plan, truth, self._stores, self._reach, self._throttle, waiting)
        for outcomes in rounds.judged(suspects):
            for store, outcome in outcomes.items():
                self.outcomes[store].add(outcome)
            yield
        if self._plan.history is not None and Store.TABLE in self._stores:
            known = {each.key for each in self.outcomes[Store.TABLE].findings}
            with self._stores.each(Store.TABLE):
                for outcome in ended(self._plan, self._config.addresses.tables, known):
                    self.outcomes[Store.TABLE].add(outcome)
                    yield
        if self._beside is not None and Store.CACHE in self._stores:
            with self._stores.each(Store.CACHE):
                yield from self._beside.compared(truth, truth.parts, self._reach.end)
        self._through = through

    def _columns(self, truth: Truth) -> ColumnPass | JobPass | None:
        """Returns the faster comparison, if no store but the warehouse needs the documents."""
        if list(self._stores) != [Store.TABLE]:
            return None
        sink, source = self._stores.sinks[Store.TABLE], truth.batches()
        if source is None or not isinstance(sink, WarehouseSink):
            return None
        # the tasks of the job would take more than a share of the time
        config = None if self._throttle.limited else self._config
        return fastest_pass(self._plan, source, sink, config)

    def _by_row(self, truth: Truth, suspects: dict[Store, list[str]]) -> Iterator[None]:
        with closing(ComparedRows(self._plan.keys)) as source:
            for part in truth.parts():
                source.add(part)
                if self._beside is not None:
                    self._beside.add(part)
                yield
            self._rows, self._withheld = source.rows, truth.withheld
            for store in self._stores:
                with self._stores.each(store):
                    yield from self._sifted(store, source, suspects)

    def _sifted(
        self, store: Store, source: ComparedRows, suspects: dict[Store, list[str]]
    ) -> Iterator[None]:
        with closing(ComparedRows(self._plan.keys)) as side:
            for part in self._stores.sinks[store].parts(self._plan):
                side.add(part)
                yield
            suspects[store] = []
            for keys in differing(source, side):
                suspects[store] += keys
                yield

    def keyless_steps(self, keyless: KeylessPass) -> Iterator[None]:
        """Compares rows without keys; see `steps`."""
        for part in keyless.read():
            if self._beside is not None:
                self._beside.add(part)
            yield
        self._rows, self._withheld = keyless.rows, keyless.withheld
        for store in self._stores:
            with self._stores.each(store):
                for outcome in keyless.compared(store, self._stores.sinks[store]):
                    self.outcomes[store].add(outcome)
                    yield
        through = None if keyless.void else keyless.position
        if self._beside is not None and Store.CACHE in self._stores:
            with self._stores.each(Store.CACHE):
                yield from self._beside.compared(None, keyless.read, self._reach.end)
        self._through = through

    def reports(self) -> list[ViewReport]:
        """Returns the results for each store that was not left out.

        Call it after the last step.
        """
        reached = self._reach.positions()
        return [
            self._report(store, outcome, reached.get((self._plan.name, store)))
            for store, outcome in self.outcomes.items()
            if store in self._stores
        ]

    def _report(
        self, store: Store, outcome: RecheckOutcome, applied_through: Lsn | None
    ) -> ViewReport:
        counts = Counter(outcome.counts)
        examples = [str(each) for each in outcome.findings[:EXAMPLES]]
        if self._beside is not None and store is Store.CACHE:
            counts.update(self._beside.counts)
            listed: Counter[str] = Counter()
            for suspect in self._beside.examples:
                listed[suspect.kind] += 1
                if listed[suspect.kind] <= EXAMPLES:
                    examples.append(str(suspect))
        columns = {name for each in outcome.findings[:EXAMPLES] for name in each.columns}
        return ViewReport(
            view=self._plan.name,
            store=store,
            rows=self._rows,
            missing=counts[KeyVerdict.MISSING],
            extra=counts[KeyVerdict.EXTRA] + counts[KeyVerdict.DUPLICATED],
            different=sum(counts[each] for each in _DIFFERENT),
            applied_through=applied_through,
            examples=tuple(examples),
            columns=tuple(c.name for c in self._plan.schema.columns if c.name in columns),
            withheld=self._withheld,
            stale=counts[KeyVerdict.STALE],
            duplicated=counts[KeyVerdict.DUPLICATED],
            quarantined=counts[KeyVerdict.QUARANTINED],
            moving=counts[KeyVerdict.MOVING],
            verified_through=None if wrong(counts) else self._through,
            findings=tuple(outcome.findings),
        )


def ended(plan: ViewPlan, tables: Path, known: set[str]) -> Iterator[RecheckOutcome]:
    """Compares the states of a history with its changes, in parts.

    The source only has present rows; the history's table of changes determines former states. The
    comparison finds altered, missing and duplicate states, and altered changes.

    Args:
        plan: The history.
        tables: Folder of the tables.
        known: Texts of keys already known to differ.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    for part in HistoryCheck(tables, plan).differing():
        outcome = RecheckOutcome()
        for document, columns in part.values():
            key = named(plan, document)
            if key not in known:
                outcome.note(KeyFinding(key, KeyVerdict.ENDED, columns=columns))
        yield outcome
