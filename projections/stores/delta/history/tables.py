"""What the two tables of a history say: how far they are, and what they have of some keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from projections.stores.delta.history.arrow import CURRENT
from projections.stores.delta.history.batch import Marks
from projections.stores.delta.history.sweep import HistorySweep

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa
    from deltalake import DeltaTable

    from projections.stores.delta.history.arrow import HistoryForm, Place

SWEEPS: Final = "headwater.sweeps"
"""Property of the table of states: what has ended all rows at once."""

OPEN_SWEEPS: Final = "headwater.sweeps.open"
"""Property of the table of states: versions of those sweeps of which not all states have ended."""

ANEW: Final = "headwater.anew"
"""Property of the table of states: columns are gone or of another type, and it has not been seen
since which states are one by those that are left."""

VERSION_MARK: Final = "headwater.version"
AT_MARK: Final = "headwater.at"
COMMIT_MARK: Final = "headwater.commit"


def transaction(table: DeltaTable, name: str) -> int:
    """Returns a number that a commit of a table has noted under a name; 0 if none has."""
    return table.transaction_version(name) or 0


def marks_of(states: DeltaTable) -> Marks:
    """Returns how far the states of a history are, as their table says."""
    sweeps = sweeps_of(states)
    return Marks(
        max([transaction(states, VERSION_MARK), *(sweep.version for sweep in sweeps)]),
        max([transaction(states, AT_MARK), *(sweep.at_us for sweep in sweeps)]),
        transaction(states, COMMIT_MARK),
        sweeps,
    )


def sweeps_of(states: DeltaTable) -> tuple[HistorySweep, ...]:
    """Returns what has ended all rows of a history at once, as the table of its states says."""
    text = states.metadata().configuration.get(SWEEPS) or ""
    return tuple(HistorySweep(*map(int, each.split(":"))) for each in text.split(",") if each)


def open_sweeps(states: DeltaTable) -> frozenset[int]:
    """Returns the versions of those sweeps by which a state may still have to be ended."""
    text = states.metadata().configuration.get(OPEN_SWEEPS) or ""
    return frozenset(int(version) for version in text.split(",") if version)


def made_anew(states: DeltaTable) -> bool:
    """Tells whether the states of a history are still to be made by the columns that are left."""
    return bool(states.metadata().configuration.get(ANEW))


def having(
    table: DeltaTable,
    form: HistoryForm,
    places: Collection[Place] | None,
    columns: list[str] | None = None,
    *,
    current: bool = False,
) -> Iterator[pa.Table]:
    """Reads rows of some keys, or all, file by file: first their keys, then those that have one."""
    if places is not None and not places:
        return
    only: Any = [(CURRENT, "=", "true")] if current else None
    wanted = None if places is None else form.first_column(places)
    data = table.to_pyarrow_dataset(file_pruning_predicate=only)
    names = columns or data.schema.names
    for file in data.get_fragments():
        if wanted is None:
            yield file.to_table(schema=data.schema, columns=names)
            continue
        keys = file.to_table(schema=data.schema, columns=[form.plan.keys[0]])
        chosen = form.among(keys, wanted)
        if pc.any(chosen).as_py():
            yield file.to_table(schema=data.schema, columns=names).filter(chosen)
