"""A sink in memory, for tests of the code that writes to sinks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdc.values import encoder
from projections.changes.reduced import missing_values
from projections.changes.row_batch import parts
from projections.changes.row_change import (
    Applied,
    Refused,
    RowChange,
    completed_version,
    may_complete,
)
from projections.changes.sink import StoredKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import ReadSpan
    from projections.planning.view_plan import ViewPlan

    _Row = tuple[int, Mapping[str, object] | None]


@dataclass(slots=True)
class _View:
    rows: dict[tuple[object, ...], _Row] = field(default_factory=dict)
    floor: int = 0


def _named(key: tuple[object, ...]) -> tuple[object, ...]:
    """Returns a key as stores tell keys apart: NaN equals itself, and -0.0 is not 0.0."""
    return tuple(repr(value) if isinstance(value, float) else value for value in key)


class MemorySink:
    """Keeps version and row of every key; a delete's row is None.

    Args:
        views: The views, to be shared by instances that stand for one store.
    """

    def __init__(self, views: dict[str, _View] | None = None) -> None:
        self.views: dict[str, _View] = {} if views is None else views

    def prepare(self, plan: ViewPlan) -> None:
        """Prepares the store for a view."""
        self.views.setdefault(plan.name, _View())

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Keeps the newest change of each key; see `Sink.apply`."""
        view = self.views.setdefault(plan.name, _View())
        before = dict(view.rows)
        total = Applied()
        for change in changes:
            if max(before.get(_named(change.key), (0, None))[0], view.floor - 1) >= change.version:
                total += Applied(stale=1)
                continue
            row, own_version = change.row, change.version
            if row is not None and change.unchanged_columns:
                version, stored = before.get(_named(change.base or change.key), (0, None))
                if stored is None or not may_complete(change, version):
                    error = missing_values(plan.schema, change.unchanged_columns)
                    total += Applied(refused=(Refused(change, error),))
                    continue
                row = {**row, **{name: stored[name] for name in change.unchanged_columns}}
                own_version = completed_version(change, version)
            view.rows[_named(change.key)] = own_version, row
            total += Applied(deleted=1) if row is None else Applied(upserted=1)
        return total

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """Looks the keys up; see `Sink.versions`."""
        view = self.views.setdefault(plan.name, _View())
        floor = max(0, view.floor - 1)
        return [max(floor, view.rows.get(_named(change.key), (0, None))[0]) for change in changes]

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[StoredKey]:
        """Looks the keys up; see `Sink.stored`."""
        view = self.views.setdefault(plan.name, _View())
        encode, floor = encoder(plan.schema), max(0, view.floor - 1)
        found = (view.rows.get(_named(key), (0, None)) for key in keys)
        return [
            StoredKey(max(floor, version), () if row is None else (encode(row),))
            for version, row in found
        ]

    def sweep(
        self,
        plan: ViewPlan,
        below_version: int,
        reads: Sequence[ReadSpan] = (),  # noqa: ARG002  # a history's
    ) -> int:
        """Forgets what is older; see `Sink.sweep`."""
        view = self.views.setdefault(plan.name, _View())
        view.floor = max(view.floor, below_version)
        old = {key: row for key, (version, row) in view.rows.items() if version < below_version}
        for key in old:
            del view.rows[key]
        return sum(row is not None for row in old.values())

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row; see `Sink.documents`."""
        return (document for _, document in self.versioned(plan))

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """Reads every live row; see `Sink.parts`."""
        return parts(plan, self.documents(plan))

    def versioned(self, plan: ViewPlan) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Reads every live row with its version; see `Sink.versioned`."""
        encode = encoder(plan.schema)
        for version, row in self.views.get(plan.name, _View()).rows.values():
            if row is not None:
                yield version, encode(row)

    def close(self) -> None:
        """Has nothing to let go of."""
