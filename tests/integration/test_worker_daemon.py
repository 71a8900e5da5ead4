"""What Spark's Python workers need is loaded once, before they are forked, and with one thread."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import orjson
import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

LOAD = """
import orjson, os, sys
from projections.spark import worker_daemon
worker_daemon.load()
names = [open(f"/proc/self/task/{n}/comm").read().strip() for n in os.listdir("/proc/self/task")]
print(orjson.dumps(names).decode())
"""

WORK = """
import gc, orjson, sys
from pathlib import Path
import pyarrow as pa
from projections.spark.session import start_session
from projections.spec import JobSpec
spec = JobSpec(source="s", plans=(), bootstrap="", source_dsn="", slot="", jars=(),
    home=Path(sys.argv[1]), cache_url="", search_url="", driver_memory_mib=500, master="local[1]")
spark = start_session(spec)
def told(batches):
    loaded = "projections.sinks.search" in sys.modules
    yield pa.RecordBatch.from_pydict({"loaded": [loaded], "frozen": [gc.get_freeze_count()]})
(row,) = spark.range(1, numPartitions=1).mapInArrow(told, "loaded boolean, frozen long").collect()
print(orjson.dumps(row.asDict()).decode())
"""


def printed(script: str, *arguments: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    return orjson.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads by Linux's /proc")
def test_nothing_runs_beside_what_is_forked() -> None:
    names = printed(LOAD)

    assert isinstance(names, list)
    assert 1 == len(names), names


@pytest.mark.spark
def test_a_worker_has_what_the_daemon_loaded(tmp_path: Path) -> None:
    told = printed(WORK, str(tmp_path))

    assert isinstance(told, dict)
    assert told["loaded"]
    assert told["frozen"] > 10_000
