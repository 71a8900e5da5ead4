"""What tests of replays with an engine share: archives in several batches, and kills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from deltalake import DeltaTable
from fix_archive import archived, compacted
from hypothesis import strategies as st

from projections.archive import replay
from projections.archive.task import ReplayOptions, ReplayState, ReplayTarget
from projections.changes.task_outcome import Held
from projections.job.rebuilding.engine import SparkEngine
from projections.stores.delta.table_sink import TableSink

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

    from projections.changes.record import Record
    from projections.changes.task_outcome import UnappliedRecord
    from projections.planning.view_plan import ViewPlan


def fill(folder: Path, topic: str, records: Sequence[Record], data: st.DataObject) -> None:
    """Adds records to an archive in some batches, compacted at times."""
    ends = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=4)))
    for start, end in zip([0, *ends], [*ends, len(records)], strict=True):
        archived(folder, topic, records[start:end])
        if data.draw(st.integers(0, 3)) == 0 and end > 0:
            compacted(folder)


class Tables:
    """Where a replay writes the newest rows of a view, and what it leaves there."""

    def __init__(
        self,
        root: Path,
        plan: ViewPlan,
        session: SparkSession | None = None,
        held: Held | None = None,
    ) -> None:
        self._root = root
        self._plan = plan
        self.engine = None if session is None else SparkEngine(session, root, rows_min=0)
        self._held = held or Held()
        self.waits: set[str] = set()

    def target(self, *, bulk: bool = True) -> ReplayTarget:
        held = Held(self._held.keys | self.waits, self._held.given_up)
        opened = TableSink(self._root)
        engine = self.engine if bulk else None
        of_view = {self._plan.name: held}
        return ReplayTarget((self._plan,), lambda: opened, of_view, self._set_aside, bulk=engine)

    def _set_aside(self, waiting: Sequence[UnappliedRecord], _: Mapping[str, int]) -> None:
        self.waits |= {each.key for each in waiting}

    def left(self, but: Collection[int] = ()) -> Any:
        """Rows with their versions, what is remembered of deletes, and what takes no change.

        Args:
            but: Keys without which they are.
        """
        (key,), name = self._plan.keys, self._plan.name
        live, gone = (DeltaTable(str(self._root / each)) for each in (name, f"{name}.deleted"))
        rows, deletes = (
            sorted(
                (row for row in table.to_pyarrow_table().to_pylist() if row[key] not in but),
                key=lambda row: row[key],
            )
            for table in (live, gone)
        )
        return rows, deletes, live.metadata().configuration, live.schema(), self.waits

    def waiting(self) -> set[int]:
        """The keys that wait."""
        (key,) = self._plan.keys
        return {orjson.loads(each)[key] for each in self.waits if each.startswith("{")}

    def of_bulk(self) -> int:
        """Rows that were committed in bulk."""
        log = (self._root / self._plan.name / "_delta_log").glob("*.json")
        texts = [path.read_text() for path in log]
        lines = [line for each in texts if "headwater.replay." in each for line in each.split("\n")]
        added = [orjson.loads(line)["add"] for line in lines if line.startswith('{"add"')]
        return sum(orjson.loads(each["stats"])["numRecords"] for each in added)


class KilledError(BaseException):
    """Stands for a kill."""


class Kill:
    """Ends a replay at the n-th thing that it does to the world: a note, or a commit in bulk."""

    def __init__(self, patch: pytest.MonkeyPatch, noted: list[ReplayState]) -> None:
        self._left = 0
        self._noted = noted
        commit = SparkEngine._commit

        def committed(own: SparkEngine, *what: Any) -> None:
            self._step()
            commit(own, *what)
            self._step()

        patch.setattr(SparkEngine, "_commit", committed)

    def after(self, steps: int) -> None:
        self._left = steps

    def note(self, state: ReplayState) -> None:
        self._noted.append(state)
        self._step()

    def _step(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise KilledError


def replay_killed(
    archive: Path,
    target: Callable[[bool], ReplayTarget],
    patch: pytest.MonkeyPatch,
    data: st.DataObject,
    steps_max: int,
) -> None:
    """Replays an archive, and kills that at some of its steps until it ends.

    Args:
        archive: The archive.
        target: Where it writes; with its engine or without.
        patch: Undone by the caller.
        data: Draws where it is killed, and which runs have an engine.
        steps_max: Most steps before a kill.
    """
    noted: list[ReplayState] = []
    killed = Kill(patch, noted)
    for _ in range(4):
        killed.after(data.draw(st.integers(1, steps_max)))
        resume = ReplayState.from_json(noted[-1].to_json()) if noted else None
        try:
            bulk = data.draw(st.integers(0, 4)) > 0
            options = ReplayOptions(note=killed.note, resume=resume)
            replay.replay(archive, [target(bulk)], options)
        except KilledError:
            continue
        return
    killed.after(1 << 30)
    replay.replay(archive, [target(True)], ReplayOptions(resume=noted[-1]))
