"""What Spark's Python workers need is loaded once, before they are forked, and with one thread."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import orjson
import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.spark]

WORK = """
import gc, orjson, os, sys
from pathlib import Path
from zipimport import zipimporter
import pyarrow as pa
from projections.job.spark.session import start_session
from projections.planning.job_config import JobConfig
config = JobConfig.of_tables("s", Path(sys.argv[1]), (),
    driver_memory_mib=500, master="local[1]")
spark = start_session(config)
def told(batches):
    daemon = Path(f"/proc/{os.getppid()}")
    yield pa.RecordBatch.from_pydict({
        "archives": [[place for place, finder in sys.path_importer_cache.items()
                      if isinstance(finder, zipimporter)]],
        "loaded": ["projections.stores.opensearch.sink" in sys.modules],
        "frozen": [gc.get_freeze_count()],
        "daemon": [(daemon / "cmdline").read_bytes().replace(b"\\0", b" ").decode()],
        "threads": [[(task / "comm").read_text() for task in (daemon / "task").iterdir()]],
    })
ddl = "archives array<string>, loaded boolean, frozen long, daemon string, threads array<string>"
(row,) = spark.range(1, numPartitions=1).mapInArrow(told, ddl).collect()
print(orjson.dumps(row.asDict()).decode())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads by Linux's /proc")
def test_a_worker_is_forked_from_one_thread_that_has_loaded_what_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    told = orjson.loads(done.stdout.splitlines()[-1])

    assert [] == told["archives"]  # Spark's own code is imported from what is installed
    assert told["loaded"]
    assert told["frozen"] > 10_000
    assert "projections.job.spark.worker_daemon" in told["daemon"]
    assert 1 == len(told["threads"]), told["threads"]
