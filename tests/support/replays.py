"""What tests of replays with an engine share: archives in several batches, and kills."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson
from deltalake import DeltaTable
from hypothesis import strategies as st
from pyspark import cloudpickle

from cdc.table import Column, ColumnKind, TableSchema
from cdc.values import decode
from projections.archive import replay
from projections.archive.rebuilding import keyed_fill, task_ranges
from projections.archive.rebuilding.engine import TaskEngine
from projections.archive.rebuilding.own_tasks import OwnTasks
from projections.archive.task import ReplayOptions, ReplayState, ReplayTarget
from projections.changes.row_change import _LENT, RowChange
from projections.changes.task_outcome import BlockedKeys
from projections.common.throttle import Pace
from projections.stores.delta.arrow import keys_table
from projections.stores.delta.history.arrow import microseconds
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.history.tables import progress_of
from projections.stores.delta.table_sink import TableSink
from tests.fix_archive import archived, compacted
from tests.fix_log import rekeyed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    import pytest

    from projections.archive.rebuilding.tasks import RebuildTask, TaskRunner
    from projections.changes.record import Record
    from projections.changes.sink import Sink
    from projections.changes.task_outcome import UnappliedRecord
    from projections.planning.view_plan import ViewPlan


KEYS: Final[Mapping[Column, Callable[[int, int], Any]]] = {
    Column("id", kind, *declared): word
    for kind, declared, word in (
        (ColumnKind.INTEGER, ("bigint",), lambda number, _: number),
        (ColumnKind.TEXT, ("text",), lambda number, _: f"ä {number}"),
        (ColumnKind.DATE, ("date",), lambda number, _: f"2026-01-{number + 1:02}"),
        (ColumnKind.TIME, ("time",), lambda number, _: f"12:30:0{number}"),
        (
            ColumnKind.TIMESTAMP,
            ("timestamp",),
            lambda n, _: f"2026-01-01 12:30:00.{n + 1}",
        ),
        (ColumnKind.TIMESTAMPTZ, ("timestamptz",), lambda n, _: f"2026-01-01 12:30:0{n}+00"),
        (ColumnKind.BYTES, ("bytea",), lambda number, _: b64encode(bytes([number])).decode()),
        (ColumnKind.NUMERIC, ("numeric(9,2)", 9, 2), lambda number, _: f"{number - 3}.50"),
    )
} | {
    # it was numeric(8,1) until the fifth record came
    Column("id", ColumnKind.NUMERIC, "numeric(9,2)", 9, 2, nullable=False): (
        lambda number, place: f"{number}.{50 if place > 3 else 5}"
    )
}
"""Keys of a table, and how each of its numbers is written in a record at a place."""


def keyed(
    data: st.DataObject, plan: ViewPlan, records: Sequence[Record]
) -> tuple[ViewPlan, list[Record], Callable[[int], Any]]:
    """Draws what the key is: returns the view, its records, and how a key is written."""
    column = data.draw(st.sampled_from([*KEYS]))
    if plan.expectations:  # they name numbers
        column = next(iter(KEYS))
    made, rewritten = with_key(plan, column, records)
    return made, rewritten, lambda number: KEYS[column](number, len(records))


def with_key(
    plan: ViewPlan, column: Column, records: Sequence[Record]
) -> tuple[ViewPlan, list[Record]]:
    """The view of a table with one of `KEYS`, and its records."""
    table = plan.schema
    schema = TableSchema(table.table, (column, *table.columns[1:]), table.key)
    return replace(plan, schema=schema), rekeyed(records, KEYS[column])


def fill(folder: Path, topic: str, records: Sequence[Record], data: st.DataObject) -> None:
    """Adds records to an archive in some batches, compacted at times."""
    ends = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=4)))
    for start, end in zip([0, *ends], [*ends, len(records)], strict=True):
        archived(folder, topic, records[start:end])
        if data.draw(st.integers(0, 3)) == 0 and end > 0:
            compacted(folder)


def filled(folder: Path, log: Mapping[str, Sequence[Record]], data: st.DataObject) -> Path:
    """Adds the records of several topics to an archive, one topic after the other."""
    for topic in data.draw(st.permutations(sorted(log))):
        fill(folder, topic, log[topic], data)
    return folder


def use_small_parts(patch: pytest.MonkeyPatch) -> None:
    """Has a replay divide its work into parts of a few records, and tasks theirs."""
    patch.setattr(replay, "PART_RECORDS", 3)
    patch.setattr(task_ranges, "TASK_ROWS", 4)
    patch.setattr(keyed_fill, "BUCKET_ROWS", 8)
    patch.setattr(keyed_fill, "PART_ROWS", 16)


def blocked(data: st.DataObject, keys: Collection[str]) -> BlockedKeys:
    """Draws whether records of these keys are quarantined, or were given up."""
    given_up = dict.fromkeys(keys) if data.draw(st.booleans()) else {}
    return BlockedKeys(frozenset() if given_up else frozenset(keys), given_up)


class SentTasks(OwnTasks):
    """Runs tasks as they arrive in another process."""

    def pace(self, share: float) -> Pace:
        return Pace(share)

    def results(self, task: RebuildTask, pieces: int, share: float) -> pa.Table:
        return super().results(cloudpickle.loads(cloudpickle.dumps(task)), pieces, share)


OWN = OwnTasks()


def drawn_tasks(data: st.DataObject) -> TaskRunner:
    """Draws what runs the tasks."""
    return data.draw(st.sampled_from([OWN, SentTasks()]))


class ReplayedTables(ABC):
    """Where a replay writes a view, and what it leaves there.

    Attributes:
        filled: End of the name of the table that has one row for each record.

    Args:
        root: Folder of the tables.
        plan: The view.
        tasks: What runs the tasks that fill them; None to write record by record.
        held: What waits before.
    """

    filled: ClassVar = ""

    def __init__(
        self,
        root: Path,
        plan: ViewPlan,
        tasks: TaskRunner | None = None,
        held: BlockedKeys | None = None,
    ) -> None:
        self._root = root
        self.plan = plan
        self.engine = None if tasks is None else TaskEngine(tasks, root, plan.name)
        self._held = held or BlockedKeys()
        self.waits: set[str] = set()
        self.unapplied: set[tuple[str, Any]] = set()

    def target(self, *, bulk: bool = True) -> ReplayTarget:
        held = BlockedKeys(self._held.keys | self.waits, self._held.given_up)
        opened = self.sink()
        engine = self.engine if bulk else None
        of_view = {self.plan.name: held}
        return ReplayTarget((self.plan,), lambda: opened, of_view, self._set_aside, bulk=engine)

    def _set_aside(self, waiting: Sequence[UnappliedRecord], _: Mapping[str, int]) -> None:
        self.waits |= {each.key for each in waiting}
        self.unapplied |= {(each.key, _position(each.record)) for each in waiting}

    @abstractmethod
    def sink(self) -> Sink:
        """Opens the store."""

    @abstractmethod
    def left(self, but: Collection[object] | None = None) -> Any:
        """What is there.

        Args:
            but: Keys without which it is, and without what depends on where batches end; None for
                all that is there.
        """

    def waiting(self) -> set[object]:
        """The keys that wait, as the tables have them."""
        (name,) = self.plan.keys
        column = self.plan.schema.by_name[name]
        keys = [orjson.loads(each)[name] for each in self.waits if each.startswith("{")]
        changes = [RowChange((decode(column, key),), 0, None, 0) for key in keys]
        return set(keys_table(self.plan, changes)[name].to_pylist())

    def of_bulk(self) -> int:
        """Rows that were committed in bulk: the newest ones, or changes of a history."""
        log = (self._root / f"{self.plan.name}{self.filled}" / "_delta_log").glob("*.json")
        texts = [path.read_text() for path in log]
        lines = [line for each in texts if "headwater.replay." in each for line in each.split("\n")]
        added = [orjson.loads(line)["add"] for line in lines if line.startswith('{"add"')]
        return sum(orjson.loads(each["stats"])["numRecords"] for each in added)

    def _table(self, suffix: str = "") -> DeltaTable:
        return DeltaTable(str(self._root / f"{self.plan.name}{suffix}"))

    def _rows(self, table: DeltaTable, but: Collection[object]) -> list[dict[str, Any]]:
        (key,) = self.plan.keys
        return [row for row in table.to_pyarrow_table().to_pylist() if row[key] not in but]


class Tables(ReplayedTables):
    """The newest rows of a view."""

    def sink(self) -> Sink:
        return TableSink(self._root)

    def left(self, but: Collection[object] | None = None) -> Any:
        """Rows with their versions, what is remembered of deletes, settings and schema."""
        (key,) = self.plan.keys
        live, gone = self._table(), self._table(".deleted")
        rows, deletes = (
            sorted(self._rows(table, but or ()), key=lambda row: row[key]) for table in (live, gone)
        )
        if (
            but is not None
        ):  # a snapshot row that came late completes a change in its own batch only
            rows = [{**row, "_version": row["_version"] & ~_LENT} for row in rows]
        return rows, deletes, live.metadata().configuration, live.schema()


class LiveTables(Tables):
    """The newest rows of a view, and the deletes of keys that have none."""

    def left(self, but: Collection[object] | None = None) -> Any:
        """Rows with their versions, and what is remembered of deletes of other keys."""
        rows, deletes, *_ = super().left(but)
        (key,) = self.plan.keys
        live = {row[key] for row in rows}
        return rows, [each for each in deletes if each[key] not in live]


class HistoryTables(ReplayedTables):
    """The states of a history, and all its changes."""

    filled: ClassVar = ".changes"

    def sink(self) -> Sink:
        return HistorySink(self._root)

    def left(self, but: Collection[object] | None = None) -> Any:
        """States and changes, sweeps, and schemas."""
        states, changes = self._table(), self._table(".changes")
        rows, known = (
            sorted(
                repr({name: value for name, value in row.items() if name != "_commit"})
                for row in self._rows(table, but or ())
            )
            for table in (states, changes)
        )
        settings = {**states.metadata().configuration}
        return rows, known, settings, [each.schema() for each in (states, changes)]

    def marks_hold(self) -> bool:
        """Whether no change that the states contain is beyond what their table notes.

        Live delivery notes nothing with a batch that leaves no state, as one of deletes alone.
        """
        marks = progress_of(self._table())
        return all(
            row["_version"] <= marks.version and microseconds(row["_at"]) <= marks.at_us
            for row in self._rows(self._table(".changes"), ())
            if row["_commit"] <= marks.commit
        )


def alike(archive: Path, one: ReplayedTables, other: ReplayedTables, *, whole: bool) -> None:
    """Replays an archive record by record and by tasks, and asserts that both leave the same.

    Which later records wait behind a quarantined one depends on where a batch of live delivery
    ends, for both sides alike. So everything is the same if all is delivered in one batch;
    otherwise all of the keys that do not wait.

    Args:
        archive: The archive.
        one: What has no engine.
        other: What has one.
        whole: Whether all is delivered in one batch.
    """
    expected, found = (replay.replay(archive, [each.target()]) for each in (one, other))
    counts, others = (result.counts[0][one.plan.name] for result in (expected, found))
    waiting = one.waiting() | other.waiting()
    if whole:
        assert one.left() == other.left()
        assert one.unapplied == other.unapplied
        assert counts.failed == others.failed
    assert one.left(waiting) == other.left(waiting)
    assert expected.ends == found.ends
    for count in (counts, others):
        assert count.records == count.applied + count.quarantined + count.filtered
    assert (counts.records, counts.filtered) == (others.records, others.filtered)


def _position(record: Record) -> Any:
    """Where a record is in the log, or its value if that says nothing.

    Of repeated copies in one batch, one is quarantined: which ones are depends on where batches of
    live delivery end, and so it does here.
    """
    try:
        fields = orjson.loads(record.value or b"null")
        return record.epoch, fields["source"]["lsn"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return record.value


class KilledError(BaseException):
    """Stands for a kill."""


class Kill:
    """Ends a replay at the n-th thing that it does to the world: a note, or a commit in bulk."""

    def __init__(self, patch: pytest.MonkeyPatch, noted: list[ReplayState]) -> None:
        self._left = 0
        self._noted = noted
        commit = TaskEngine._commit

        def committed(own: TaskEngine, *what: Any) -> None:
            self._step()
            commit(own, *what)
            self._step()

        patch.setattr(TaskEngine, "_commit", committed)

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
