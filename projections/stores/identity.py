"""Marks: whether a store still has the rows of a view that its query wrote.

Anyone can delete an index or restore it from a backup. The query that fills it would continue at
its checkpoint, and earlier rows would be missing for good. The identity mark of each index is
therefore recorded beside the checkpoint, and an index with another mark counts as new: see
`backfill`.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import orjson

from foundation.atomic_file import write_atomically
from projections.common.side_by_side import side_by_side
from projections.errors import IndexLostError
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from projections.definition.views import Store
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan


@runtime_checkable
class Marked(Protocol):
    """A sink that can tell the place of a view from every other that has its name.

    Several threads may ask it at once.
    """

    def mark(self, plan: ViewPlan) -> str | None:
        """Returns the mark of a view's place; None if there is none that was prepared."""
        ...


def lost(spec: JobSpec, store: Store) -> frozenset[str]:
    """Returns the views whose place is not the one that was filled.

    Raises:
        SinkUnavailableError: The store does not answer.
    """
    kept = _read(spec.config, store)
    if not kept:
        return frozenset()
    now = _marks(spec, store)
    return frozenset(view for view, mark in now.items() if kept.get(view, mark) != mark)


def forget(config: JobConfig, store: Store, views: frozenset[str]) -> None:
    """Forgets the places that views had."""
    kept = _read(config, store)
    _write(config, store, {view: mark for view, mark in kept.items() if view not in views})


def check(spec: JobSpec, store: Store) -> None:
    """Refuses to go on where a place has been lost since the job began.

    Raises:
        IndexLostError: One has.
        SinkUnavailableError: The store does not answer.
    """
    gone = lost(spec, store)
    if gone:
        raise IndexLostError(
            f"view {min(gone)} was deleted or replaced in {store}",
            detail=", ".join(sorted(gone)),
            hint="restart the job: it takes a new snapshot of the table and fills the store",
        )


def keep(spec: JobSpec, store: Store) -> None:
    """Keeps the marks of places that were just prepared, and of those of views that are paused.

    Raises:
        SinkUnavailableError: The store does not answer.
    """
    marks = _marks(spec, store)
    if not marks:
        return
    paused = {view.name for view in spec.paused if store in view.to}
    kept = {view: mark for view, mark in _read(spec.config, store).items() if view in paused}
    _write(
        spec.config, store, kept | {view: mark for view, mark in marks.items() if mark is not None}
    )


def _marks(spec: JobSpec, store: Store) -> dict[str, str | None]:
    with closing(open_sink(store, spec.config.addresses)) as sink:
        if not isinstance(sink, Marked):
            return {}
        plans = spec.plans_in(store)
        marks = side_by_side(sink.mark, plans)
        return {plan.name: mark for plan, mark in zip(plans, marks, strict=True)}


def _read(config: JobConfig, store: Store) -> dict[str, str]:
    path = _file(config, store)
    if not path.is_file():
        return {}
    marks: dict[str, str] = orjson.loads(path.read_bytes())
    return marks


def _write(config: JobConfig, store: Store, marks: Mapping[str, str]) -> None:
    path = _file(config, store)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, orjson.dumps(marks))


def _file(config: JobConfig, store: Store) -> Path:
    return config.checkpoint(store).with_name(f"{store}.marks.json")
