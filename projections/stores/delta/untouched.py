"""Whether the tables of a view are still as created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable

from projections.stores.delta.history.tables import SWEEPS
from projections.stores.delta.table_format import FLOOR, LOADED

if TYPE_CHECKING:
    from pathlib import Path

    from projections.planning.view_plan import ViewPlan


def untouched(root: Path, plan: ViewPlan) -> bool:
    """Returns whether the tables of a view never had a row, a delete, a change or a truncate.

    Args:
        root: Folder of the tables.
        plan: The view.
    """
    for name in (plan.name, f"{plan.name}.deleted", f"{plan.name}.changes"):
        path = str(root / name)
        if not DeltaTable.is_deltatable(path):
            continue
        table = DeltaTable(path)
        if table.file_uris() or {LOADED, FLOOR, SWEEPS} & table.metadata().configuration.keys():
            return False
    return True
