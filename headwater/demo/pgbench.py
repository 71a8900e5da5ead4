"""The workload pgbench, which ships with Postgres."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from headwater.demo.errors import WorkloadError
from headwater.demo.result import Invariant
from headwater.demo.traffic import ChildTraffic, Written
from headwater.demo.workload import Person, Probe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater.demo.traffic import Traffic
    from headwater.demo.workload import SumReader

CHANGES_PER_TRANSACTION: Final = 4
"""Three updates and an insert."""

_SUMMED: Final = {
    "accounts": ("pgbench_accounts", "abalance"),
    "tellers": ("pgbench_tellers", "tbalance"),
    "branches": ("pgbench_branches", "bbalance"),
    "history": ("pgbench_history", "delta"),
}
_PROMISE: Final = "sum(abalance) = sum(tbalance) = sum(bbalance) = sum(delta)"
_INIT_TIMEOUT_S: Final = 600.0
_PROGRESS: Final = re.compile(r"^progress: ([\d.]+) s, ([\d.]+) tps")
_PROCESSED: Final = re.compile(r"^number of transactions actually processed: (\d+)")
_DURATION: Final = re.compile(r"^duration: (\d+) s")
_EXPECTED: Final = re.compile(
    r"^(pgbench \(|transaction type|scaling factor|query mode|number of|maximum number|duration"
    r"|latency|rate limit|initial connection|tps =)"
)


@dataclass(frozen=True, slots=True)
class Pgbench:
    """The TPC-B-like tables and transactions of the pgbench that ships with Postgres."""

    name: ClassVar[str] = "pgbench"
    title: ClassVar[str] = "pgbench"
    settings_file: ClassVar[Path] = Path(__file__).parent / "pgbench_project" / "headwater.toml"
    # an account's filler takes no part in any sum
    probe: ClassVar[Probe] = Probe(
        view="accounts",
        key={"aid": 1},
        column="filler",
        update="UPDATE pgbench_accounts SET filler = %s::text WHERE aid = 1",
    )

    spare_column: ClassVar[str | None] = None
    person: ClassVar[Person | None] = None

    def prepare(self, dsn: str, scale: float) -> int:
        """Runs `pgbench -i`; a scale of 1 makes 100,000 accounts.

        Must run before capture starts, because it truncates its tables.
        """
        whole = max(1, round(scale))
        argv = [str(_program()), "-i", "-q", "-s", str(whole)]
        try:
            done = subprocess.run(
                argv,
                env=_environment(dsn),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_INIT_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise WorkloadError("pgbench -i did not end", detail=f"scale {whole}") from None
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise WorkloadError("pgbench -i failed", detail=last)
        return whole * 100_011

    def start_traffic(self, dsn: str, rate: float, seconds: float) -> Traffic:
        """Runs pgbench with two clients, limited to `rate` row changes per second."""
        per_second = max(rate / CHANGES_PER_TRANSACTION, 0.1)
        # -n: without it pgbench truncates its history first
        words = ["-n", "-c", "2", "-P", "1", "-R", f"{per_second:g}", "-T", f"{seconds:.0f}"]
        return ChildTraffic(
            [str(_program()), *words],
            _Reader(),
            env=_environment(dsn),
            reports_on_stderr=True,
        )

    def invariants(self, dsn: str, stores: Mapping[str, SumReader]) -> tuple[Invariant, ...]:
        """Returns the sums of all balances and of all deltas, which must be equal."""
        found = [Invariant(_PROMISE, "source", _sums_of_source(dsn))]
        for store, sum_of in stores.items():
            values = {view: sum_of(view, column) for view, (_, column) in _SUMMED.items()}
            found.append(Invariant(_PROMISE, store, values))
        return tuple(found)


class _Reader:
    """Parses pgbench's progress; exact after its end."""

    def __init__(self) -> None:
        self._transactions = 0.0
        self._at_s = self._seconds = 0.0

    def __call__(self, line: str) -> Written | None:
        if match := _PROGRESS.match(line):
            at_s, per_second = float(match[1]), float(match[2])
            self._transactions += (at_s - self._at_s) * per_second
            self._at_s = self._seconds = at_s
        elif match := _DURATION.match(line):
            self._seconds = float(match[1])
        elif match := _PROCESSED.match(line):
            self._transactions = float(match[1])
        elif not _EXPECTED.match(line):
            return None
        whole = round(self._transactions)
        return Written(whole * CHANGES_PER_TRANSACTION, whole, 0, self._seconds)


def _program() -> Path:
    from headwater.runtime.servers.postgres import binaries  # noqa: PLC0415

    return binaries() / "pgbench"


def _environment(dsn: str) -> dict[str, str]:
    """Returns libpq's environment variables, to keep the password out of the arguments."""
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    fields = conninfo_to_dict(dsn)
    names = {
        "host": "PGHOST",
        "port": "PGPORT",
        "user": "PGUSER",
        "password": "PGPASSWORD",
        "dbname": "PGDATABASE",
        "sslmode": "PGSSLMODE",
    }
    given = {names[key]: str(value) for key, value in fields.items() if key in names}
    return {**os.environ, **given}


def _sums_of_source(dsn: str) -> dict[str, int]:
    import psycopg  # noqa: PLC0415

    sums = {}
    with psycopg.connect(dsn) as connection:
        for view, (table, column) in _SUMMED.items():
            row = connection.execute(f"SELECT coalesce(sum({column}), 0) FROM {table}").fetchone()  # noqa: S608
            sums[view] = int(row[0]) if row else 0
    return sums
