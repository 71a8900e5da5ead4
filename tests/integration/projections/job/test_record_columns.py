"""The writer's columns, whatever headers a record has and in whatever order."""

from __future__ import annotations

import os
import subprocess
import sys

import orjson
import pytest

from headwater.runtime.java import java

pytestmark = pytest.mark.integration

EPOCH = ("headwater.epoch", b"3")
OTHER_EPOCH = ("headwater.epoch", b"4")
OLD_KEY = ("__debezium.oldkey", b'{"id":1}')
STRANGE = ("x", b"y")

HEADERS: list[list[tuple[str, bytes]] | None] = [
    [EPOCH],
    [EPOCH, OLD_KEY],
    [OLD_KEY, EPOCH],
    [STRANGE, OLD_KEY, STRANGE, EPOCH, OTHER_EPOCH],
    [STRANGE],
    [],
    None,
]
SCRIPT = """
import datetime, sys, orjson
from pyspark.sql import SparkSession
from projections.job.record_columns import record_columns
cases = [None if h is None else [(k, v.encode()) for k, v in h] for h in orjson.loads(sys.argv[1])]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
sent = datetime.datetime(2026, 1, 1)
rows = [("t", 0, n, sent, b"k", b"v", headers) for n, headers in enumerate(cases)]
records = spark.createDataFrame(rows, "topic string, partition int, offset long,"
    " timestamp timestamp, key binary, value binary,"
    " headers array<struct<key: string, value: binary>>")
found = record_columns(records).orderBy("offset").collect()
print(orjson.dumps([[r.epoch, r.old_key and bytes(r.old_key).decode()] for r in found]).decode())
"""


def first_named(headers: list[tuple[str, bytes]] | None, name: str) -> str | None:
    return next((value.decode() for key, value in headers or [] if key == name), None)


def test_the_first_header_of_a_name_counts_wherever_it_stands() -> None:
    cases = orjson.dumps([h and [(k, v.decode()) for k, v in h] for h in HEADERS]).decode()

    own = {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java.find_java().home)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, cases],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **own},
    )

    assert done.returncode == 0, done.stderr[-3000:]
    wanted = [[first_named(h, EPOCH[0]), first_named(h, OLD_KEY[0])] for h in HEADERS]
    assert wanted == orjson.loads(done.stdout.splitlines()[-1])
