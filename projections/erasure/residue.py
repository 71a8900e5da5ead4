"""Removes earlier versions of a Delta table from its files and its log.

It also removes deleted entries that a cache has on disk until it rewrites its files, and former
documents that a search engine keeps in segments until they are merged.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import redis
from deltalake import DeltaTable

from foundation.atomic_file import replacing, write_atomically
from foundation.waiting import looks
from projections.common.delta_log import parsed
from projections.errors import SinkUnavailableError
from projections.stores.valkey.client import translated_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from projections.stores.opensearch.client import SearchEngine

_NUMBERED: Final = re.compile(r"(\d{20})\.(.+)")
_COMMIT: Final = "json"
_CHECKPOINT: Final = "parquet"
_VALUED: Final = {
    "add": ("stats", "stats_parsed", "tags"),
    "remove": ("stats", "tags"),
    "commitInfo": ("operationParameters", "operationMetrics"),
}
"""Fields of a commit that contain values: a file's column bounds, and conditions.
"""


def forget_past(table: Path, kept: Collection[int] = ()) -> None:
    """Removes all files outside the kept versions, and values from the log.

    The log itself stays, without values: a writer that knows the table at an earlier commit
    continues from there, and would otherwise reuse the next number; and a reader that is just
    opening the table may be at an older checkpoint. No process may write to the table meanwhile. A
    reader of another version fails.

    Args:
        table: Folder of the table.
        kept: Versions that must stay readable beside the newest. Later ones than the last of them
            stay as well: the job has written them and may be about to publish one.

    Raises:
        DeltaError: The table cannot be read or written.
        OSError: A file cannot be removed.
    """
    opened = DeltaTable(str(table))
    # a table that was created again has none of the versions that its predecessor published
    kept = [number for number in kept if number <= opened.version()]
    unpublished = range(max(kept, default=opened.version()), opened.version() + 1)
    oldest = min([*kept, opened.version()])
    at_oldest = opened
    if oldest < opened.version():
        at_oldest = DeltaTable(str(table), version=oldest)
    at_oldest.create_checkpoint()
    opened.vacuum(
        retention_hours=0,
        enforce_retention_duration=False,
        dry_run=False,
        full=True,  # including leftovers of a killed writer
        keep_versions=sorted({*kept, *unpublished}),
    )
    for file in sorted((table / "_delta_log").iterdir()):
        match = _NUMBERED.fullmatch(file.name)
        if match is None:
            continue
        if match[2] == _COMMIT and int(match[1]) <= oldest:
            _forget_in_commit(file)
        elif match[2].endswith(_CHECKPOINT) and int(match[1]) < oldest:
            _forget_in_checkpoint(file)


def _forget_in_commit(commit: Path) -> None:
    content = commit.read_bytes()
    without_values = b"\n".join(orjson.dumps(_without_values(line)) for line in parsed(content))
    if without_values != content:
        write_atomically(commit, without_values)


def _forget_in_checkpoint(checkpoint: Path) -> None:
    lines = pq.read_table(checkpoint, partitioning=None)
    for kind in _VALUED.keys() & set(lines.schema.names):
        lines = lines.set_column(
            lines.schema.get_field_index(kind), kind, _without(lines[kind], _VALUED[kind])
        )
    with replacing(checkpoint) as file:
        pq.write_table(lines, file)


def _without(fields: pa.ChunkedArray, names: Collection[str]) -> pa.Array:
    """Returns statistics without some of their columns."""
    array = fields.combine_chunks()
    parts = [
        pa.nulls(len(array), field.type) if field.name in names else array.field(number)
        for number, field in enumerate(array.type)
    ]
    return pa.StructArray.from_arrays(parts, fields=list(array.type), mask=array.is_null())


def _without_values(line: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: {name: value for name, value in fields.items() if name not in _VALUED.get(kind, ())}
        for kind, fields in line.items()
    }


_POLL_S: Final = 0.1
_UNDER_WAY: Final = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")


def rewrite_files(url: str, deadline_s: float) -> bool:
    """Makes a cache rewrite its files, and waits for it.

    Args:
        url: `redis://…`.
        deadline_s: Longest wait, seconds.

    Returns:
        Whether it did; False if the server does not permit it.

    Raises:
        SinkUnavailableError: It does not answer, or does not finish in time.
    """
    client = redis.Redis.from_url(url)
    try:
        with translated_errors():
            persistence: Any = client.info("persistence")
            _await(client, deadline_s)  # a running one may have begun before
            if persistence.get("aof_enabled"):
                _requested(client, client.bgrewriteaof, deadline_s)
            if persistence.get("rdb_last_save_time") and persistence.get("rdb_saves", 1):
                _requested(client, client.bgsave, deadline_s)
    except redis.ResponseError:
        return False
    finally:
        client.close()
    return True


def _requested(client: redis.Redis, ask: Callable[[], object], deadline_s: float) -> None:
    ask()
    _await(client, deadline_s)


def _await(client: redis.Redis, deadline_s: float) -> None:
    for _ in looks(deadline_s, _POLL_S):
        fields: Any = client.info("persistence")
        if not any(fields.get(name) for name in _UNDER_WAY):
            return
    raise SinkUnavailableError(
        "the cache did not rewrite its files in time", detail=f"after {deadline_s:.0f} s"
    )


_MERGE: Final = "_forcemerge?only_expunge_deletes=true&wait_for_completion=false"
_ALL: Final = {
    "index": {
        "merge.policy.expunge_deletes_allowed": "0",
        "soft_deletes.retention.operations": "0",
    }
}
_USUAL: Final = {"index": dict.fromkeys(_ALL["index"])}
_FLUSH: Final = "_flush?force=true&wait_if_ongoing=true"
_RELEASE_S: Final = 120.0
"""How often replicas report their progress; a missing one is remembered for hours."""

_SEARCH_POLL_S: Final = 0.3


class Expunged(NamedTuple):
    """The result of removing former documents.

    Attributes:
        indices: The indices.
        left: Indices that still have some: a replica is missing, or merges did not remove them.
    """

    indices: list[str]
    left: list[str]


def expunge(engine: SearchEngine, places: Iterable[str], deadline_s: float) -> Expunged:
    """Merges segments that have former documents, and waits for that.

    A merge drops an overwritten document only if every copy of the shard has the later change:
    while a copy may still request it, the document is copied into the new segment. This function
    therefore first waits until all copies have confirmed every change.

    Args:
        engine: The engine.
        places: Physical names of the views.
        deadline_s: Longest wait for the merges of an index, seconds.

    Raises:
        SinkError: The engine refuses, does not answer, or does not finish in time.
    """
    indices = [
        each["index"]
        for place in places
        for each in engine.request("GET", f"/_cat/indices/{place}-*?format=json&h=index")
    ]
    names = sorted(indices)
    with ExitStack() as altered:
        for name in names:
            engine.request("PUT", f"/{name}/_settings", _ALL)
            altered.callback(engine.request, "PUT", f"/{name}/_settings", _USUAL)
        held = _await_released(engine, names)
        left = names
        # after much traffic a merge may leave a segment as it is: the engine drops a document once
        # it has noted itself that no copy needs it, some time after the copies have confirmed
        for _ in looks(_RELEASE_S, _SEARCH_POLL_S):
            left = [name for name in left if not _merged(engine, name, deadline_s)]
            if not set(left) - held:
                break
    return Expunged(names, sorted({*left, *held}))


def _merged(engine: SearchEngine, name: str, deadline_s: float) -> bool:
    """Merges an index; returns whether no segment with former documents is left."""
    engine.request("POST", f"/{name}/{_FLUSH}")
    former = _with_former(engine, name)
    asked = engine.request("POST", f"/{name}/{_MERGE}")
    _await_search(engine, asked["task"], deadline_s)
    # merged segments are removed after a commit, once searches use the new one
    engine.request("POST", f"/{name}/{_FLUSH}")
    engine.request("POST", f"/{name}/_refresh")
    return not former & _with_former(engine, name)


def _await_released(engine: SearchEngine, names: Iterable[str]) -> set[str]:
    """Waits until no copy requests earlier changes; returns indices where one does."""
    written = {
        name: {
            shard: max(copy["seq_no"]["max_seq_no"] for copy in copies)
            for shard, copies in _copies(engine, name).items()
        }
        for name in names
    }
    held = set(written)
    for _ in looks(_RELEASE_S, _SEARCH_POLL_S):
        held = {name for name in held if not _released(engine, name, written[name])}
        if not held:
            break
    return held


def _released(engine: SearchEngine, name: str, written: Mapping[str, int]) -> bool:
    return all(
        lease["retaining_seq_no"] > written.get(shard, -1)
        for shard, copies in _copies(engine, name).items()
        for copy in copies
        for lease in copy["retention_leases"]["leases"]
    )


def _copies(engine: SearchEngine, name: str) -> dict[str, list[dict[str, Any]]]:
    answer = engine.request("GET", f"/{name}/_stats?level=shards")
    copies: dict[str, list[dict[str, Any]]] = answer["indices"][name]["shards"]
    return copies


def _with_former(engine: SearchEngine, name: str) -> set[tuple[str, str, str]]:
    """Returns the segments of each copy that have former documents."""
    shards = engine.request("GET", f"/{name}/_segments")["indices"][name]["shards"]
    return {
        (shard, copy["routing"]["node"], segment)
        for shard, copies in shards.items()
        for copy in copies
        for segment, fields in copy["segments"].items()
        if fields["deleted_docs"]
    }


def _await_search(engine: SearchEngine, task: str, deadline_s: float) -> None:
    for _ in looks(deadline_s, _SEARCH_POLL_S):
        answer: Any = engine.request("GET", f"/_tasks/{task}")
        if answer.get("completed"):
            return
    raise SinkUnavailableError(
        "search did not merge its segments in time",
        detail=f"after {deadline_s:.0f} s",
        hint="run the command again later; the merge continues",
    )
