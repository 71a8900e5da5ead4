"""The metadata of a history's two tables, and reads of some keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from projections.stores.delta.history.arrow import CURRENT
from projections.stores.delta.history.batch import HistoryProgress
from projections.stores.delta.history.sweep import HistorySweep

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa
    from deltalake import DeltaTable

    from projections.stores.delta.history.arrow import HistoryForm, TableKey

SWEEPS: Final = "headwater.sweeps"
"""Property of the table of states: the sweeps so far."""

OPEN_SWEEPS: Final = "headwater.sweeps.open"
"""Property of the table of states: versions of the sweeps that have not ended all states yet."""

UNMERGED: Final = "headwater.anew"
"""Property of the table of states: columns were dropped or retyped, and states that differed only
in them have not been merged yet."""

VERSION_MARK: Final = "headwater.version"
AT_MARK: Final = "headwater.at"
COMMIT_MARK: Final = "headwater.commit"


def transaction(table: DeltaTable, name: str) -> int:
    """Returns the number that a table's commits recorded under a name; 0 if none did."""
    return table.transaction_version(name) or 0


def progress_of(states: DeltaTable) -> HistoryProgress:
    """Returns the progress of a history's states."""
    sweeps = sweeps_of(states)
    return HistoryProgress(
        max([transaction(states, VERSION_MARK), *(sweep.version for sweep in sweeps)]),
        max([transaction(states, AT_MARK), *(sweep.at_us for sweep in sweeps)]),
        transaction(states, COMMIT_MARK),
        sweeps,
    )


def sweeps_of(states: DeltaTable) -> tuple[HistorySweep, ...]:
    """Returns the sweeps of a history."""
    text = states.metadata().configuration.get(SWEEPS) or ""
    return tuple(HistorySweep(*map(int, each.split(":"))) for each in text.split(",") if each)


def open_sweeps(states: DeltaTable) -> frozenset[int]:
    """Returns the versions of the sweeps that have not ended all states yet."""
    text = states.metadata().configuration.get(OPEN_SWEEPS) or ""
    return frozenset(int(version) for version in text.split(",") if version)


def needs_recompute(states: DeltaTable) -> bool:
    """Returns whether the states must still be recomputed for dropped columns."""
    return bool(states.metadata().configuration.get(UNMERGED))


def having(
    table: DeltaTable,
    form: HistoryForm,
    keys: Collection[TableKey] | None,
    columns: list[str] | None = None,
    *,
    current: bool = False,
) -> Iterator[pa.Table]:
    """Reads rows of some keys, or all, file by file: first the keys, then matching rows."""
    if keys is not None and not keys:
        return
    only: Any = [(CURRENT, "=", "true")] if current else None
    wanted = None if keys is None else form.first_column(keys)
    data = table.to_pyarrow_dataset(file_pruning_predicate=only)
    names = columns or data.schema.names
    for file in data.get_fragments():
        if wanted is None:
            yield file.to_table(schema=data.schema, columns=names)
            continue
        first_column = file.to_table(schema=data.schema, columns=[form.plan.keys[0]])
        chosen = form.among(first_column, wanted)
        if pc.any(chosen).as_py():
            yield file.to_table(schema=data.schema, columns=names).filter(chosen)
