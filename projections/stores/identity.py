"""Identity marks: whether a store still has the rows of a view that its query wrote.

Anyone can delete an index or restore it from a backup. The query that fills it would continue at
its checkpoint, and earlier rows would be missing permanently. The identity mark of each index is
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
    """A sink that can distinguish the index or table of a view from another with its name.

    Threads may share it.
    """

    def mark(self, plan: ViewPlan) -> str | None:
        """Returns the mark of a view's index or table; None if none was prepared."""
        ...


def lost(spec: JobSpec, store: Store) -> frozenset[str]:
    """Returns the views whose index or table is not the one that was filled.

    Raises:
        SinkUnavailableError: The store does not answer.
    """
    recorded = _read(spec.config, store)
    if not recorded:
        return frozenset()
    now = _marks(spec, store)
    return frozenset(view for view, mark in now.items() if recorded.get(view, mark) != mark)


def forget(config: JobConfig, store: Store, views: frozenset[str]) -> None:
    """Deletes the recorded marks of views."""
    recorded = _read(config, store)
    _write(config, store, {view: mark for view, mark in recorded.items() if view not in views})


def check(spec: JobSpec, store: Store) -> None:
    """Refuses to continue if an index or table was replaced since the job began.

    Raises:
        IndexLostError: One was.
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
    """Records the marks of prepared views and of paused ones.

    Raises:
        SinkUnavailableError: The store does not answer.
    """
    marks = _marks(spec, store)
    if not marks:
        return
    paused = {view.name for view in spec.paused if store in view.to}
    of_paused = {view: mark for view, mark in _read(spec.config, store).items() if view in paused}
    _write(
        spec.config,
        store,
        of_paused | {view: mark for view, mark in marks.items() if mark is not None},
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
