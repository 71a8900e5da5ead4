"""Lanes of a replay, and the steps in which they read the records of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.table import ColumnKind
from projections.changes.applier import TaskApplier
from projections.planning.key_forms import one_form

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from projections.archive.bulk import BulkEngine
    from projections.archive.survey import FoldKey
    from projections.archive.task import Had, ReplayState, ReplayTarget
    from projections.changes.sink import Sink
    from projections.planning.view_plan import ViewPlan


class ReplayLane:
    """Views of one target that read the same records."""

    def __init__(
        self, number: int, target: ReplayTarget, plans: list[ViewPlan], sink: OpenedStore
    ) -> None:
        self.number = number
        self.target = target
        self.plans = plans
        self.delivery = TaskApplier(
            plans,
            sink.get,
            target.held,
            changes_per_write=target.changes_per_write,
            overlapped=True,
        )

    def reads(self, topic: str) -> bool:
        """Whether its views read a topic."""
        return any(topic in plan.topics for plan in self.plans)

    @property
    def filtered(self) -> int:
        """Records delivered so far that its views do not need."""
        return sum(count.filtered for count in self.delivery.counts.values())

    @property
    def written(self) -> int:
        """Rows and deletes that its store has accepted so far."""
        every = (count.changes for count in self.delivery.counts.values())
        return sum(applied.upserted + applied.deleted for applied in every)


class OpenedStore:
    """A target's store, opened on first use."""

    def __init__(self, target: ReplayTarget) -> None:
        self._target = target
        self._sink: Sink | None = None

    def get(self) -> Sink:
        """Returns it, opened."""
        if self._sink is None:
            self._sink = self._target.open_sink()
        return self._sink

    def close(self) -> None:
        """Closes it if it was opened."""
        if self._sink is not None:
            self._sink.close()


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One pass over a topic, for some lanes.

    Attributes:
        topic: The topic.
        fold: The fold of mirrors; None where every record counts, as for a history.
        chains: Whether it is the pass over the keys that need more than one record.
        lanes: The lanes that read the records.
        bulk: Whether the lane's engine writes them.
    """

    topic: str
    fold: FoldKey | None
    chains: bool
    lanes: tuple[ReplayLane, ...]
    bulk: BulkEngine | None = None


def engine_of(lane: ReplayLane) -> BulkEngine | None:
    """Returns the engine that fills a lane in bulk; None if an engine refuses one of its views."""
    plan, *others = lane.plans
    return lane.target.bulk if not others and bulk_refusal(plan) is None else None


def goes_in_bulk(
    lanes: Sequence[ReplayLane],
    state: ReplayState | None,
    had: Had | None,
) -> bool:
    """Returns whether a replay uses engines; it does so from beginning to end, or not at all.

    A bulk write reads no existing row, so the table must be empty before. A catch-up round, and a
    replay that was once continued without engines, use none.

    Args:
        lanes: The lanes.
        state: Where it resumes; None if it begins.
        had: The records that the views already have; None for a complete replay.
    """
    engines = [(lane, engine) for lane in lanes if (engine := engine_of(lane)) is not None]
    if not engines or had is not None:
        return False
    if state is not None:
        return state.bulk
    return all(engine.ready(lane.plans[0]) for lane, engine in engines)


def bulk_refusal(plan: ViewPlan) -> str | None:
    """Returns why the tables of a view cannot be filled in bulk; None if they can."""
    key = [plan.schema.by_name[name] for name in plan.schema.key]
    if all(map(one_form, key)):
        return None
    return "values of its key may be written in several ways"


def folded(plan: ViewPlan) -> bool:
    """Returns whether only the newest record of each key counts for a view.

    It does not if equal keys may be written in different ways, as for some types; see `one_form`.
    """
    if plan.events is not None or plan.history is not None or plan.append_only:
        return False
    if plan.inserted_at:
        return False  # when a row was inserted, an older one says
    by_name = plan.schema.by_name
    many = (by_name[n] for n in plan.schema.key if by_name[n].kind in _MANY_FORMS)
    return all(map(one_form, many))


def from_all(plan: ViewPlan) -> bool:
    """Returns whether an engine fills a view from all records of its topics together.

    Otherwise it folds the topic. A commit in bulk reads no existing row, so it must not have only
    one topic's records if records of another topic may be of the same rows.
    """
    return not folded(plan) or len(plan.topics) > 1


_MANY_FORMS: Final = (ColumnKind.NUMERIC, ColumnKind.FLOAT)


def steps_of(lanes: Sequence[ReplayLane], *, in_bulk: bool) -> Iterator[ReplayStep]:
    """Returns the passes over the topics of some lanes, in order.

    Args:
        lanes: The lanes.
        in_bulk: Whether their engines write what they can.
    """
    for topic in in_turn(plan for lane in lanes for plan in lane.plans):
        own = [lane for lane in lanes if lane.reads(topic)]
        mirrors = [lane for lane in own if _folds(lane, in_bulk=in_bulk)]
        for ahead in sorted({lane.plans[0].left_to_read for lane in mirrors}):
            of_fold = [lane for lane in mirrors if lane.plans[0].left_to_read == ahead]
            yield from _passes(topic, (topic, ahead), of_fold, in_bulk=in_bulk)
            yield ReplayStep(topic, (topic, ahead), chains=True, lanes=tuple(of_fold))
        others = [lane for lane in own if lane not in mirrors]
        yield from _passes(topic, None, others, in_bulk=in_bulk)


def _folds(lane: ReplayLane, *, in_bulk: bool) -> bool:
    """Returns whether a lane reads only the newest record of each key of a topic."""
    (plan, *_) = lane.plans
    return folded(plan) and not (in_bulk and engine_of(lane) is not None and from_all(plan))


def _passes(
    topic: str, fold: FoldKey | None, lanes: Sequence[ReplayLane], *, in_bulk: bool
) -> Iterator[ReplayStep]:
    """Yields the passes: one for each lane with an engine, then one for all others together."""
    engines = {lane: engine_of(lane) if in_bulk else None for lane in lanes}
    for lane, engine in engines.items():
        if engine is not None:
            yield ReplayStep(topic, fold, False, (lane,), engine)
    others = tuple(lane for lane in lanes if engines[lane] is None)
    if others:
        yield ReplayStep(topic, fold, chains=False, lanes=others)


def in_turn(plans: Iterable[ViewPlan]) -> list[str]:
    """Returns the topics of views, those of former names first: later rows may need theirs."""
    topics: dict[str, None] = {}
    for plan in plans:
        for topic in reversed([*plan.topics]):
            topics.setdefault(topic)
    return list(topics)
