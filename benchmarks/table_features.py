"""What Delta's table features cost and give, beside the tables that Headwater writes.

The same rows and the same batches of changes go into one table of each form. Headwater's form is
written by `deltalake` with a merge, and has no feature beyond the plain protocol; the others are
written by Spark's MERGE, as only Spark writes them. Measured are a batch, a question over all rows
and one for a key, both by `deltalake`, which is what `headwater query` reads with. What cannot be
done with a form is said. All tables are compared row by row before a figure counts.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from benchmarks.order_feed import LOADED_AT_ONCE, ROW, OrderFeed
from benchmarks.order_tables import alike, merge_by_deltalake, merge_by_spark, session
from benchmarks.result import Measure, Report, faster
from projections.stores.delta.table_format import COMPACTED_BYTES, CONFIGURATION

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

WRITTEN_RATIO: Final = 1.0
"""The form that is chosen is to be written no slower than any other."""

ASKED_RATIO: Final = 0.7
"""A question of a few milliseconds is not to be answered much slower than from any other."""

_ROWS: Final = 4_000_000
_ROWS_QUICK: Final = 50_000
_BATCHES: Final = 5
_BATCHES_QUICK: Final = 2
_WARM: Final = 1
_READS: Final = 5
_OURS: Final = "plain, by deltalake"
_DELETION_VECTORS: Final = {"delta.enableDeletionVectors": "true"}
_FORMS: Final[dict[str, tuple[dict[str, str], str]]] = {
    "plain, by Spark": ({}, ""),
    "deletion vectors": (_DELETION_VECTORS, ""),
    "deletion vectors, clustered by key": (_DELETION_VECTORS, "CLUSTER BY (id)"),
    "deletion vectors, change feed, row tracking": (
        {
            **_DELETION_VECTORS,
            "delta.enableChangeDataFeed": "true",
            "delta.enableRowTracking": "true",
        },
        "",
    ),
}
_QUESTIONS: Final = {
    "all rows": "SELECT status, count(*), sum(price) FROM t GROUP BY status",
    "a key": "SELECT * FROM t WHERE id = 4711",
}
_DDL: Final = "id BIGINT, customer INT, price DECIMAL(12,2), status STRING, note STRING"


@dataclass(slots=True)
class _Form:
    """A table of one form, and what was seen of it."""

    place: Path
    take: Callable[[Path], None]
    batches_s: list[float] = field(default_factory=list)
    answers_s: dict[str, float] = field(default_factory=dict)


def run(quick: bool) -> Report:
    """Measures; `quick` takes fewer rows and batches."""
    rows, batches = (_ROWS_QUICK, _BATCHES_QUICK) if quick else (_ROWS, _BATCHES)
    feed = OrderFeed(rows, random.Random(7))  # noqa: S311  # the same feed every time
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        root = Path(folder)
        spark = session(root)
        try:
            forms = _loaded(spark, root, feed)
            for number in range(_WARM + batches):
                path = root / f"batch-{number}.parquet"
                pq.write_table(feed.batch(), path)
                for form in forms.values():
                    began = time.perf_counter()
                    form.take(path)
                    form.batches_s.append(time.perf_counter() - began)
            checked = alike(spark, [form.place for form in forms.values()])
            for name, form in forms.items():
                _ask(form)
                _say(f"{name}: {_told(form)}")
        finally:
            spark.stop()
    return Report("table_features", checked, tuple(_measures(forms)))


def _measures(forms: dict[str, _Form]) -> list[Measure]:
    ours = forms.pop(_OURS)
    found = []
    for name, form in forms.items():
        seconds = median(form.batches_s[_WARM:])
        text = f"seconds for a batch, {_OURS}, beside {name}"
        chosen = median(ours.batches_s[_WARM:])
        found.append(faster(text, ours=chosen, peer=seconds, limit=None, target=WRITTEN_RATIO))
        for question, peer_s in form.answers_s.items():
            text = f"seconds for a question of {question}, {_OURS}, beside {name}"
            chosen = ours.answers_s[question]
            found.append(faster(text, ours=chosen, peer=peer_s, limit=None, target=ASKED_RATIO))
    return found


def _loaded(spark: SparkSession, root: Path, feed: OrderFeed) -> dict[str, _Form]:
    """A table of each form with the same first rows."""
    first = root / "first.parquet"
    with pq.ParquetWriter(first, ROW) as writer:
        for rows in feed.first():
            writer.write_table(rows)
    ours = root / "ours"
    DeltaTable.create(str(ours), ROW, configuration=dict(CONFIGURATION))
    batches = pq.ParquetFile(first).iter_batches(LOADED_AT_ONCE)
    reader = pa.RecordBatchReader.from_batches(ROW, batches)
    write_deltalake(ours, reader, mode="append", target_file_size=COMPACTED_BYTES)
    forms = {_OURS: _Form(ours, partial(merge_by_deltalake, ours, streamed=False))}
    for number, (name, (properties, clause)) in enumerate(_FORMS.items()):
        place = root / f"form-{number}"
        said = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        given = f"TBLPROPERTIES ({said})" if said else ""
        spark.sql(f"CREATE TABLE delta.`{place}` ({_DDL}) USING delta {clause} {given}")
        rows = spark.read.parquet(str(first))
        # in files of the size of ours: a merge rewrites what it touches
        rows.coalesce(max(1, feed.rows // LOADED_AT_ONCE)).write.format("delta").mode(
            "append"
        ).save(str(place))
        forms[name] = _Form(place, partial(merge_by_spark, spark, place))
    return forms


def _ask(form: _Form) -> None:
    for question, sql in _QUESTIONS.items():
        seconds = []
        for _ in range(_READS):
            began = time.perf_counter()
            engine = QueryBuilder().register("t", DeltaTable(form.place))
            engine.execute(sql).read_all()
            seconds.append(time.perf_counter() - began)
        form.answers_s[question] = median(seconds)


def _told(form: _Form) -> str:
    """What a form costs, and what `deltalake` can do with it."""
    table = DeltaTable(form.place)
    size_mib = sum(path.stat().st_size for path in form.place.rglob("*.parquet")) >> 20
    can: dict[str, Callable[[], object]] = {
        "arrow": lambda: table.to_pyarrow_dataset().count_rows(),
        "update": lambda: table.update(predicate="id = -1", new_values={"note": "x"}),
        "compact": table.optimize.compact,
    }
    refused = [name for name, work in can.items() if not _works(work)]
    told = f"{median(form.batches_s[_WARM:]):.2f} s a batch"
    told += "".join(f", {s * 1000:.0f} ms for {name}" for name, s in form.answers_s.items())
    return f"{told}, {size_mib:,} MiB; refused: {', '.join(refused) or 'nothing'}"


def _works(work: Callable[[], object]) -> bool:
    try:
        work()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told
        _say(f"  {type(error).__name__}: {str(error)[:120]}")
        return False
    return True


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
