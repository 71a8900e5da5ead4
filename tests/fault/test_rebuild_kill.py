"""Who builds a version dies, and the job too, at any moment: what is rebuilt equals what is live.

Both equal their source, and histories what the workload has done, state by state. Where rows come
under other keys without their large values, a history may lack states that have none by anybody
that could tell: there, no state may be one that never was.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import defaultdict
from contextlib import closing, contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from cdc.snapshot import reads
from cdc.snapshot.request import ask
from cdc.table import TableName
from projections.changes import sweeps
from projections.definition.views import HistoryColumns, MirrorView, Store
from projections.job import backfill
from projections.planning.binding import bind
from projections.stores.factory import open_sink
from projections.versions import rebuild, registry
from projections.versions.version import VersionState
from tests.fix_capture import reading
from tests.oracles import rebuild_workload
from tests.oracles.rebuild_workload import TRACKED, Row, State, Workload, in_short
from tests.support.version_steps import compared, connected
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import ForkServerContext

    import psycopg

    from projections.definition.views import View
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

    Connection = psycopg.Connection[Any]

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=4),
    pytest.mark.timeout(1800),
]

THINGS = TableName("public", "things")
STEPS_MAX = {"mirror": 18, "history": 60}
"""Of a rebuild of this workload, about how many steps it has; see `rebuild_workload.STEPS`."""


@pytest.fixture
def processes() -> ForkServerContext:
    return multiprocessing.get_context("forkserver")


def test_a_rebuilt_view_equals_the_live_one_whatever_is_killed(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    database: str,
    processes: ForkServerContext,
    run_seed: int,
) -> None:
    """Whether large values are logged with a row that comes under another key is chance, too."""
    chance = Random(run_seed)  # noqa: S311  # no secret
    logged = bool(chance.getrandbits(1))
    workload = Workload(database, Random(f"writes {run_seed}"), logged=logged)  # noqa: S311
    workload.begin()
    captured = capture("things")
    job = view_job(captured, views=declared(captured.spec.name), own_jvm=True)
    workload.read = partial(_ask, captured, job)
    with told(run_seed, job), connected(job.spec.config) as connection, reading(captured):
        assert {} == registry.register(connection, job.spec.config.source, job.spec.views)
        job.start()
        assert [] == job.catch_up()
        workload.start()
        try:
            done = workload.written + chance.randint(100, 300)
            wait_until(
                lambda: workload.written > done or workload.error is not None, timeout_s=LONG_S
            )
            kills = chance.sample([_killed_while_it_fills, _killed_while_it_joins], 2)
            for view, kill in zip(chance.sample(job.spec.views, 2), kills, strict=True):
                _built(connection, processes, job, view, chance, kill)
            _struck(job)
            done = workload.written + chance.randint(50, 200)
            wait_until(
                lambda: workload.written > done or workload.error is not None, timeout_s=LONG_S
            )
        finally:
            workload.end()

        job.catch_up()  # what waits in quarantine is a difference until then
        wait_until(lambda: _at_rest(connection, job), timeout_s=LONG_S)
        assert [] == job.catch_up()
        mirror, past = job.spec.views
        assert [] == _difference(connection, job.spec, mirror)
        _equal_in_all_stores(job, mirror)
        if logged:
            assert [] == _difference(connection, job.spec, past)
            _equal_in_all_states(job, past, workload)
        else:
            _never_wrong(job, past, workload)
        assert 0 == job.stop()


def declared(source: str) -> tuple[MirrorView, MirrorView]:
    past = HistoryColumns(tracked=TRACKED)
    return (
        MirrorView(f"{source}_mirror", source, THINGS, (), frozenset(Store)),
        MirrorView(f"{source}_history", source, THINGS, (), frozenset({Store.TABLE}), history=past),
    )


@contextmanager
def told(seed: int, job: ViewJob) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(job.report(f"seed {seed}, in {job.spec.config.home}"))
        raise


def _built(  # noqa: PLR0913, PLR0917
    connection: Connection,
    processes: ForkServerContext,
    job: ViewJob,
    view: View,
    chance: Random,
    kill: Callable[[Any, ViewJob, View, Random], None],
) -> None:
    """Has a version built by processes that die, but for the last, while the job dies, too."""
    steps_max = STEPS_MAX[view.name.rpartition("_")[2]]
    attempts = [chance.randrange(steps_max), chance.randrange(steps_max), None]
    struck = chance.randrange(len(attempts))
    for number, step in enumerate(attempts):
        process = processes.Process(target=rebuild_workload.build, args=(job.spec, view, step))
        process.start()
        if kill is _killed_while_it_fills and number == struck:
            kill(process, job, view, chance)
        process.join(3 * LONG_S)
        assert process.exitcode in {0, -signal.SIGKILL if step is not None else 0}
    if kill is _killed_while_it_joins:
        kill(process, job, view, chance)
    wait_until(lambda: _held(connection, job.spec.config, view), timeout_s=LONG_S)


def _killed_while_it_fills(process: Any, job: ViewJob, _: View, chance: Random) -> None:
    process.join(chance.uniform(0, 2))
    _struck(job)


def _killed_while_it_joins(_: Any, job: ViewJob, view: View, chance: Random) -> None:
    """As soon as it is asked to take the version over, or one of its stores has it."""
    store = chance.choice([None, *sorted(view.to)])
    if store is not None:
        file = job.spec.config.checkpoint(store).with_suffix(".json")
        wait_until(lambda: f"{view.name}.v2" in (backfill.read(file) or {}), timeout_s=LONG_S)
    _struck(job)


def _struck(job: ViewJob) -> None:
    job.kill()
    assert [] == job.orphans()
    job.start()


def _held(connection: Connection, config: JobConfig, view: View) -> bool:
    version = rebuild.numbered(connection, config, view.name, 2)
    assert version.fault is None
    return version.state is VersionState.HELD


def _ask(captured: Captured, job: ViewJob) -> None:
    """Asks for a read of the whole table unless views are still to be swept by the one before.

    They claim no position until then: of reads that come faster than a slow machine sweeps, there
    would be no end.
    """
    with connected(job.spec.config) as connection:
        if _swept(connection, job):
            ask(captured.spec, THINGS)


def _difference(connection: Connection, spec: JobSpec, view: View) -> list[object]:
    """What the command would say of both versions, at one boundary."""
    first, second = registry.of_view(connection, spec.config.source, view.name)
    views = [each.declared(spec.views) for each in (first, second)]
    plans = [bind(connection, spec.config.source, [each]).plans[0] for each in views]
    change = registry.changed(connection, first, registry.defined(second))
    found = compared(connection, spec.config, *plans, change)
    return [] if found.same else [found]


def _at_rest(connection: Connection, job: ViewJob) -> bool:
    """Whether nothing is read any more, nothing waits, and what reads allow is swept."""
    assert 4 == len(job.bound().plans)
    waiting = "SELECT FROM headwater.quarantine WHERE state IN ('waiting', 'retry')"
    return _swept(connection, job) and not connection.execute(waiting).fetchall()


def _swept(connection: Connection, job: ViewJob) -> bool:
    """Whether nothing is read any more, and what reads allow is swept from every version."""
    source = job.spec.config.source
    whole, done = reads.whole_reads(connection, source), sweeps.swept_versions(connection)
    pending = [
        sweeps.pending(plan, store, whole, done) for plan in job.bound().plans for store in plan.to
    ]
    assert len(pending) >= 4
    return not any(pending) and not reads.open_reads(
        connection, source, reads.epoch_of(connection, source, 1)
    )


def _equal_in_all_stores(job: ViewJob, view: View) -> None:
    first, second = _plans(job, view)
    for store in Store:
        with closing(open_sink(store, job.spec.config.addresses)) as sink:
            old, new = (
                {row["id"]: dict(row) for row in sink.documents(plan)} for plan in (first, second)
            )
        assert [] == _unlike(old, new), store
        assert old


def _equal_in_all_states(job: ViewJob, view: View, workload: Workload) -> None:
    first, second = (_states(job.spec.config, plan) for plan in _plans(job, view))
    assert [] == _unlike(first, second)
    expected, found = workload.states(), _told(first)
    assert [] == _unlike(expected, found)
    assert expected


def _never_wrong(job: ViewJob, view: View, workload: Workload) -> None:
    for plan in _plans(job, view):
        states = _states(job.spec.config, plan)
        rows = (
            (state["id"], Row(*(state[name] for name in Row._fields))) for state in states.values()
        )
        assert [] == [row for row in rows if row not in workload.ever][:5], plan.name
        assert states


def _plans(job: ViewJob, view: View) -> tuple[ViewPlan, ViewPlan]:
    by_name = {plan.name: plan for plan in job.bound().plans}
    return by_name[view.name], by_name[f"{view.name}.v2"]


def _unlike(one: dict[Any, Any], other: dict[Any, Any]) -> list[tuple[Any, Any, Any]]:
    """Some of what only one has, or what is not the same in both, with its key."""
    keys = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    return [(key, one.get(key), other.get(key)) for key in keys[:5]]


def _states(config: JobConfig, plan: ViewPlan) -> dict[Any, dict[str, Any]]:
    """All that a history has, by key and time."""
    rows = DeltaTable(str(config.addresses.tables / plan.name)).to_pyarrow_table().to_pylist()
    found = {(row["id"], row["valid_from"]): row | {"big": in_short(row["big"])} for row in rows}
    assert len(rows) == len(found)
    return dict(sorted(found.items()))


def _told(states: dict[Any, dict[str, Any]]) -> dict[int, list[State]]:
    found: dict[int, list[State]] = defaultdict(list)
    rows = list(states.values())
    for row, following in zip(rows, [*rows[1:], {"id": None}], strict=True):
        end = row["valid_to"]
        followed = following["id"] == row["id"] and following["valid_from"] == end
        state = Row(*(row[name] for name in Row._fields))
        found[row["id"]].append(State(state, None if end is None else followed))
    return dict(found)
