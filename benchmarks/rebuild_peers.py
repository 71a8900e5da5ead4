"""What peers do to set the rows of a table in a cache from records of its changes.

Each parses every record and sets the row under its key, in pipelines of 500, or takes it away; none
guards a write by its version, and none remembers a delete. bytewax and quixstreams do it record by
record, as they are made for; pathway takes the file as one batch and finds the newest record of
each key first. quixstreams reads from a topic, which its program fills before it is timed. None is
timed for its start.
"""

from __future__ import annotations

from typing import Final

BYTEWAX: Final = """
import sys, time
import orjson, redis
import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

path, url = sys.argv[1:]

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

class Rows(StatelessSinkPartition):
    def __init__(self):
        self.client = redis.Redis.from_url(url)
    def write_batch(self, items):
        for start in range(0, len(items), 500):
            pipeline = self.client.pipeline(transaction=False)
            for key, row in items[start:start + 500]:
                if row is None:
                    pipeline.delete(key)
                else:
                    pipeline.set(key, row)
            pipeline.execute()

class Cache(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Rows()

def parsed(line):
    change = orjson.loads(line)
    if change["op"] == "d":
        return f"peer:{change['before']['id']}", None
    row = change["after"]
    return f"peer:{row['id']}", orjson.dumps(row)

flow = Dataflow("rebuild")
records = op.input("records", flow, Source())
op.output("cache", op.map("parsed", records, parsed), Cache())
began = time.monotonic()
run_main(flow)
print(time.monotonic() - began)
"""
PATHWAY: Final = """
import sys, time
import orjson, redis
import pathway as pw

path, url = sys.argv[1:]
client = redis.Redis.from_url(url)
waiting = []

class Change(pw.Schema):
    before: pw.Json | None
    after: pw.Json | None
    lsn: int

def flush():
    pipeline = client.pipeline(transaction=False)
    for key, row in waiting:
        if row is None:
            pipeline.delete(key)
        else:
            pipeline.set(key, row)
    pipeline.execute()
    waiting.clear()

def value_of(json):
    return None if json is None else json.value

def key_of(before, after) -> int:
    return (value_of(after) or value_of(before))["id"]

def changed(key, row, time, is_addition):
    if is_addition:
        after = value_of(row["after"])
        waiting.append((f"peer:{row['key']}", None if after is None else orjson.dumps(after)))
        if len(waiting) >= 500:
            flush()

changes = pw.io.jsonlines.read(
    path, schema=Change, mode="static", json_field_paths={"lsn": "/source/lsn"}
)
keyed = changes.select(
    pw.this.after, pw.this.lsn, key=pw.apply_with_type(key_of, int, pw.this.before, pw.this.after)
)
newest = keyed.groupby(keyed.key).reduce(at=pw.reducers.argmax(keyed.lsn))
rows = keyed.ix(newest.at, context=newest).select(pw.this.key, pw.this.after)
pw.io.subscribe(rows, on_change=changed, on_end=flush)
began = time.monotonic()
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
print(time.monotonic() - began)
"""
QUIXSTREAMS: Final = """
import sys, time
import orjson, redis
from quixstreams import Application
from quixstreams.sinks import BatchingSink

path, url, broker = sys.argv[1:]
lines = open(path, "rb").readlines()
done = {"rows": 0, "began": 0.0, "seconds": 0.0}

def processed(topic, partition, offset):
    done["rows"] += 1
    if done["rows"] == 1:
        done["began"] = time.monotonic()
    if done["rows"] == len(lines):
        app.stop()

class Rows(BatchingSink):
    def setup(self):
        self.client = redis.Redis.from_url(url)
    def write(self, batch):
        for part in batch.iter_chunks(500):
            pipeline = self.client.pipeline(transaction=False)
            for item in part:
                row = item.value["after"]
                if row is None:
                    pipeline.delete(f"peer:{item.value['before']['id']}")
                else:
                    pipeline.set(f"peer:{row['id']}", orjson.dumps(row))
            pipeline.execute()
        done["seconds"] = time.monotonic() - done["began"]

app = Application(
    broker, consumer_group="peer", auto_offset_reset="earliest", loglevel="ERROR",
    use_changelog_topics=False, on_message_processed=processed, commit_every=10_000,
)
topic = app.topic("records", value_deserializer="json")
with app.get_producer() as producer:
    for line in lines:
        producer.produce("records", value=line.strip())
app.dataframe(topic).sink(Rows())
app.run()
print(done["seconds"])
"""
