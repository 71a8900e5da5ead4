"""HistoryCheck: whether the states of a history, including ended ones, follow from its changes.

Both tables are read as of one moment: the states record the last commit of changes that they
contain, and later commits are ignored. Writes may therefore continue.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from msgspec import structs

from cdc.values import encoder
from projections.stores.delta import key_equality
from projections.stores.delta.history.arrow import COMMIT, HistoryForm
from projections.stores.delta.history.states import history
from projections.stores.delta.history.tables import having, needs_recompute, progress_of
from projections.stores.delta.view_tables import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from projections.planning.view_plan import ViewPlan
    from projections.stores.delta.history.arrow import TableKey
    from projections.stores.delta.history.states import HistoryChange, HistoryState

KEYS_AT_ONCE: Final = 50_000
"""Keys compared in memory at a time; each part reads the key columns of the tables once."""

Document = dict[str, Any]


class HistoryCheck:
    """Compares one history with its own changes."""

    def __init__(self, root: Path, plan: ViewPlan) -> None:
        self._plan = plan
        self._form = HistoryForm(plan)
        self._path = str(root / plan.name)
        self._encode = encoder(plan.schema)

    def differing(self) -> Iterator[dict[str, tuple[Document, tuple[str, ...]]]]:
        """Yields, for each part of the keys, those whose states differ.

        Yields:
            By the text of the key, a document with the key, and the differing columns or bounds of
            states. Nothing while the states are recomputed because columns changed.

        Raises:
            SinkUnavailableError: A table cannot be read, or was replaced meanwhile.
        """
        try:
            for part in () if needs_recompute(DeltaTable(self._path)) else self._parts():
                yield {str(key): difference for key, difference in part.items()}
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unavailable(self._plan, error) from None

    def unsettled(self) -> Iterator[set[TableKey]]:
        """Yields, for each part of the keys, those whose states differ.

        Raises:
            DeltaError: A table cannot be read.
        """
        for part in self._parts():
            yield set(part)

    def _parts(self) -> Iterator[dict[TableKey, tuple[Document, tuple[str, ...]]]]:
        states = DeltaTable(self._path)
        changes = DeltaTable(f"{self._path}.changes")
        through = progress_of(states).commit
        keys = iter(self._keys(states, changes, through))
        while part := set(islice(keys, KEYS_AT_ONCE)):
            yield self._part(states, changes, part)

    def _keys(self, states: DeltaTable, changes: DeltaTable, through: int) -> list[TableKey]:
        names = list(self._plan.keys)
        changed = changes.to_pyarrow_dataset().to_table(columns=[*names, COMMIT])
        changed = changed.filter(pc.less_equal(changed.column(COMMIT), through)).select(names)
        known = pa.concat_tables([changed, states.to_pyarrow_dataset().to_table(columns=names)])
        return self._form.keys_in(key_equality.grouped(known, names))

    def _part(
        self, states: DeltaTable, changes: DeltaTable, part: set[TableKey]
    ) -> dict[TableKey, tuple[Document, tuple[str, ...]]]:
        progress = progress_of(states)
        known: dict[TableKey, list[HistoryChange]] = {}
        for rows in having(changes, self._form, part):
            taken = rows.filter(pc.less_equal(rows.column(COMMIT), progress.commit))
            for key, change in self._form.changes(taken):
                known.setdefault(key, []).append(change)
        stored: dict[TableKey, list[HistoryState]] = {}
        for rows in having(states, self._form, part):
            for key, state in self._form.states(rows):
                stored.setdefault(key, []).append(state)
        differing = {}
        for key in part:
            every = known.get(key)
            wanted = history(progress.with_sweeps(every), self._form.rule) if every else []
            difference = self._difference(wanted, stored.get(key, []))
            if difference is not None:
                one = (wanted or stored[key])[0]
                differing[key] = dict(self._encode(one.row)), difference
        return differing

    def _difference(
        self, wanted: Sequence[HistoryState], there: Sequence[HistoryState]
    ) -> tuple[str, ...] | None:
        """Returns how states differ; None if they do not, empty if some are missing."""
        one, other = ([*map(self._document, sorted(s, key=_identity))] for s in (wanted, there))
        if one == other:
            return None
        pairs = zip(one, other, strict=False)
        names = {name for a, b in pairs for name in a if a[name] != b.get(name)}
        return tuple(sorted(names))

    def _document(self, state: HistoryState) -> Mapping[str, Any]:
        bounds = structs.asdict(state)
        row = self._encode(bounds.pop("row"))
        return {**row, **{_column(name): value for name, value in bounds.items()}}


def _column(name: str) -> str:
    """Returns the table column of a field of a state; a view's own column never has such a name."""
    name = name.removesuffix("_us")
    return f"_{name}" if name.endswith("version") or name == "last_at" else name


def _identity(state: HistoryState) -> tuple[int, int]:
    return state.identity
