"""What peers do to count rows in windows of a minute, by the rows' own time.

Each parses lines of JSON in the order of their time. bytewax keeps nothing but what it counts, in
memory. quixstreams reads from a topic, which its program fills before it is timed, and keeps its
counts in a store on disk, without a topic of their changes. Neither is timed for its start.
"""

from __future__ import annotations

from typing import Final

BYTEWAX: Final = """
import sys, time
from datetime import datetime, timedelta, timezone
import orjson
import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators.windowing import EventClock, TumblingWindower
from bytewax.testing import TestingSink, run_main

path, out = sys.argv[1], []

class Lines(StatelessSourcePartition):
    def __init__(self):
        self.file = open(path, "rb")
    def next_batch(self):
        lines = self.file.readlines(1 << 20)
        if not lines:
            raise StopIteration
        return lines

class Source(DynamicSource):
    def build(self, step_id, worker_index, worker_count):
        return Lines()

def at(event):
    return datetime.fromtimestamp(event["at"] / 1e6, timezone.utc)

clock = EventClock(ts_getter=at, wait_for_system_duration=timedelta(seconds=10))
begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
windower = TumblingWindower(length=timedelta(minutes=1), align_to=begin)
flow = Dataflow("windows")
events = op.map("parsed", op.input("lines", flow, Source()), orjson.loads)
counted = win.count_window("counted", events, clock, windower, lambda event: event["region"])
op.output("out", counted.down, TestingSink(out))
began = time.monotonic()
run_main(flow)
print(time.monotonic() - began, sum(count for _, (_, count) in out))
"""
QUIXSTREAMS: Final = """
import sys, time
from datetime import timedelta
import orjson
from quixstreams import Application

path, broker = sys.argv[1:]
lines = open(path, "rb").readlines()
done = {"rows": 0, "began": 0.0, "seconds": 0.0}
counts = {}

def processed(topic, partition, offset):
    done["rows"] += 1
    if done["rows"] == 1:
        done["began"] = time.monotonic()
    if done["rows"] == len(lines):
        done["seconds"] = time.monotonic() - done["began"]
        app.stop()

def counted(window, key, at, headers):
    counts[key, window["start"]] = window["value"]

app = Application(
    broker, consumer_group="peer", auto_offset_reset="earliest", loglevel="ERROR",
    use_changelog_topics=False, on_message_processed=processed,
)
topic = app.topic(
    "lines", key_deserializer="str", value_deserializer="json",
    timestamp_extractor=lambda value, headers, at, kind: value["at"] // 1000,
)
with app.get_producer() as producer:
    for line in lines:
        producer.produce("lines", value=line.strip(), key=orjson.loads(line)["region"].encode())
windows = app.dataframe(topic).tumbling_window(timedelta(minutes=1)).count().current()
windows.update(counted, metadata=True)
app.run()
print(done["seconds"], sum(counts.values()))
"""
