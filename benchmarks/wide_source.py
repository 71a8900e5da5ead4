"""A source of 400 tables beside one of 16: what a stranger's large database costs.

Each is a database of its own, taken through the whole path by the command line: `init`, `doctor`,
`plan`, `up`, until every view of every store has all rows. Then rows of ten tables are changed, 40
in a second, while single changes are timed from their commit until each store shows them as its
reader gets it: what the idle tables cost. After that, the same with rows of all tables in turn, so
that each batch writes as many tables as it has changes. The memory of the job is read after the
first load and at the end. Every view is verified before a figure counts. The two are run one after
the other, each with new servers; what the machine has read from disk by then is warm for both.
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import psycopg

from benchmarks.result import Report, at_most, grown
from benchmarks.schema_run import Project
from benchmarks.streaming import say
from benchmarks.wide_traffic import Freshness, Traffic
from headwater import runtime
from headwater.platform.specs import JOB
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from headwater.runtime.memory import tree_rss_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY_RATIO: Final = 1.5
FRESHNESS_RATIO: Final = 1.05

_FEW: Final = 16
_MANY: Final = 400
_MANY_QUICK: Final = 80
_ROWS: Final = 100
_TRAFFIC_S: Final = 90
_TRAFFIC_QUICK_S: Final = 40
_DEADLINE_S: Final = 900
_MIB: Final = 1024 * 1024
_STORES: Final = ("cache", "search", "table")
_TEN: Final = "ten of them changed"
_ALL: Final = "all of them changed"
_SUBJECTS: Final = ("order", "invoice", "ticket", "person", "stock", "asset", "plan", "site")
_PARTITIONED_EVERY: Final = 40
_KEYLESS_EVERY: Final = 10

_COLUMNS: Final = """
amount bigint NOT NULL DEFAULT 0, note text, price numeric(12, 2), at timestamptz DEFAULT now(),
kind varchar(20), active boolean DEFAULT true, more jsonb, reference uuid, ratio double precision
"""
_FILL: Final = """
INSERT INTO {table} (id, note, price, kind, more, reference, ratio)
SELECT id, 'note ' || id, id * 1.25, 'kind ' || id % 7, jsonb_build_object('n', id),
       md5(id::text)::uuid, id / 3.0
  FROM generate_series(1, {rows}) AS id
"""


@dataclass(slots=True)
class Outcome:
    """What one source showed.

    Attributes:
        tables: Mirrored ones.
        equal: Whether every view equals its table.
        seconds: By command; `loaded` runs from the start of `up`.
        cpu_s: Processor time, by command.
        memory_mib: Of the job: after the first load, and after the traffic.
        freshness: By store, with changes in so many tables.
        job_cpu: Part of a core that the job takes during the traffic on all tables.
    """

    tables: int
    equal: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    memory_mib: dict[str, int] = field(default_factory=dict)
    freshness: dict[tuple[str, str], Freshness] = field(default_factory=dict)
    job_cpu: float = 0.0


def run(quick: bool) -> Report:
    """Measures; `quick` has 80 tables and 40 s of traffic."""
    many, traffic_s = (_MANY_QUICK, _TRAFFIC_QUICK_S) if quick else (_MANY, _TRAFFIC_S)
    few, wide = (_outcome(count, traffic_s) for count in (_FEW, many))
    measures = [
        at_most(f"{command} of {many} tables, s", ours=wide.seconds[command], target=target)
        for command, target in (("init", 10.0), ("doctor", 10.0), ("plan", 10.0))
    ]
    measures += [
        grown(
            f"memory of the job, {many} tables beside {_FEW}, {moment}, MiB",
            before=few.memory_mib[moment],
            after=wide.memory_mib[moment],
            target=MEMORY_RATIO,
        )
        for moment in wide.memory_mib
    ]
    measures += [
        grown(
            f"commit to visible in {store}, {name}, {many} tables beside {_FEW}, {changed}, s",
            before=getattr(few.freshness[changed, store], name),
            after=getattr(wide.freshness[changed, store], name),
            target=FRESHNESS_RATIO,
        )
        for changed in (_TEN, _ALL)
        for store in _STORES
        for name in ("p50_s", "p95_s", "p99_s")
    ]
    return Report("wide_source", few.equal and wide.equal, tuple(measures))


@contextmanager
def _server() -> Iterator[str]:
    """A server of Postgres for one database."""
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        spec = RuntimeSpec(home=home, services={ServiceName.POSTGRES: Spawned()}, lifeline=True)
        try:
            yield runtime.up(spec).postgres_dsn or ""
        finally:
            runtime.down(home)


def _outcome(tables: int, traffic_s: int) -> Outcome:
    """Takes a database of so many tables the whole way."""
    outcome = Outcome(tables)
    with _server() as server, tempfile.TemporaryDirectory(prefix="headwater-wide-") as folder:
        dsn = _database(server, tables)
        outside = _Timed(Path(folder), outcome)
        draft = json.loads(outside.run("init", "shop", "--dsn", dsn, "--json"))
        views = {each["view"]: each["table"] for each in draft["tables"] if each["to"]}
        if len(views) != tables:
            raise RuntimeError(f"{len(views)} of {tables} tables are mirrored")
        project = _Timed(Path(folder) / "shop", outcome)
        project.run("doctor", "--json", code=None)
        try:
            _measure(project, dsn, views, outcome, traffic_s)
        finally:
            project.run("down", code=None)
    say(f"{tables} tables: {outcome}")
    return outcome


def _measure(
    project: _Timed, dsn: str, views: dict[str, str], outcome: Outcome, traffic_s: int
) -> None:
    began = time.monotonic()
    project.run("up")
    _await_rows(project.folder, views)
    outcome.seconds["loaded"] = time.monotonic() - began
    job = project.job()
    outcome.memory_mib["after the first load"] = (tree_rss_bytes(job) or 0) // _MIB
    project.run("plan", "--json", code=None)  # it ends with 3 as long as views are being filled
    project.run("status", "--json")
    for changed, of in ((_TEN, dict(list(views.items())[:10])), (_ALL, views)):
        before = _cpu_s(job)
        with closing(Traffic(project.folder, dsn, of)) as traffic:
            outcome.freshness |= {(changed, s): f for s, f in traffic.run(traffic_s).items()}
        outcome.job_cpu = (_cpu_s(job) - before) / traffic_s
    outcome.memory_mib["after the traffic"] = (tree_rss_bytes(job) or 0) // _MIB
    reports = json.loads(project.run("view", "verify", "--json"))
    compared = sum(not (r["missing"] or r["extra"] or r["different"]) for r in reports)
    outcome.equal = compared == len(views) * len(_STORES)


class _Timed(Project):
    """A project whose commands' processor time is noted as well."""

    def __init__(self, folder: Path, outcome: Outcome) -> None:
        super().__init__(folder)
        self._outcome = outcome

    def run(self, *words: str, code: int | None = 0) -> str:
        before = psutil.Process().cpu_times()
        said = super().run(*words, code=code)
        after = psutil.Process().cpu_times()
        name = words[1] if words[0] == "view" else words[0]
        self._outcome.seconds[name] = round(self.seconds[name], 2)
        spent = after.children_user + after.children_system
        self._outcome.cpu_s[name] = round(spent - before.children_user - before.children_system, 2)
        return said

    def job(self) -> int:
        """Returns the process id of the job."""
        services = json.loads(super().run("status", "--json", code=None))["services"]
        return int(next(each["pid"] for each in services if each["name"] == JOB))


def _await_rows(folder: Path, views: dict[str, str]) -> None:
    """Waits until each view of each store has every row of its first load."""
    deadline = time.monotonic() + _DEADLINE_S
    while (left := _missing(folder, views)) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        raise RuntimeError(f"{len(left)} views are not loaded: {sorted(left)[:3]}")


def _missing(folder: Path, views: dict[str, str]) -> set[tuple[str, str]]:
    file = folder / ".headwater" / "run" / "job.json"
    queries = json.loads(file.read_bytes())["queries"] if file.is_file() else {}
    return {
        (view, store)
        for store in _STORES
        for view in views
        if queries.get(store, {}).get("views", {}).get(view, {}).get("records", 0) < _ROWS
    }


def _cpu_s(pid: int) -> float:
    """Returns the processor time of a process and of those that it started."""
    root = psutil.Process(pid)
    times = [each.cpu_times() for each in [root, *root.children(recursive=True)]]
    return sum(each.user + each.system for each in times)


def _database(server: str, tables: int) -> str:
    """Makes a database: every tenth table beside them has no key, some are partitioned."""
    name = f"wide_{tables}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    dsn = server.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(dsn) as connection:
        for number in range(tables):
            _table(connection, number)
        for number in range(tables // _KEYLESS_EVERY):
            connection.execute(f"CREATE TABLE log_{number:03} (id bigint, {_COLUMNS})".encode())
        connection.execute(b"ANALYZE")
    return dsn


def _table(connection: psycopg.Connection[Any], number: int) -> None:
    table = f"{_SUBJECTS[number % len(_SUBJECTS)]}_{number:03}"
    made = f"CREATE TABLE {table} (id bigint PRIMARY KEY, {_COLUMNS})"
    if number % _PARTITIONED_EVERY == 1:
        connection.execute(f"{made} PARTITION BY HASH (id)".encode())
        for part in range(4):
            connection.execute(
                f"CREATE TABLE {table}_p{part} PARTITION OF {table}"
                f" FOR VALUES WITH (MODULUS 4, REMAINDER {part})".encode()
            )
    else:
        connection.execute(made.encode())
    connection.execute(_FILL.format(table=table, rows=_ROWS).encode())
