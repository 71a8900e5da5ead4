"""What a search engine keeps of former documents: segments have them until they are merged."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from projections.errors import SinkUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from projections.stores.opensearch.client import SearchEngine

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
"""Copies say each half a minute how far they are; one that is away is remembered for hours."""

_POLL_S: Final = 0.3


class Expunged(NamedTuple):
    """What became of former documents.

    Attributes:
        indices: The indices.
        left: Those that keep some yet, for a copy that is away.
    """

    indices: list[str]
    left: list[str]


def expunge(engine: SearchEngine, places: Iterable[str], deadline_s: float) -> Expunged:
    """Has segments merged that have documents of earlier times, and waits for it.

    A merge leaves out only what every copy of a shard has: as long as one may ask for the changes
    since, the document that was overwritten stays, and is taken over into the new segment. So it is
    waited for first that the copies have said that they have what has been written by now.

    Args:
        engine: The engine.
        places: Under which names views are kept.
        deadline_s: Longest wait for the merges of an index, seconds.

    Raises:
        SinkError: The engine refuses, does not answer, or is not done in time.
    """
    found = [
        each["index"]
        for place in places
        for each in engine.request("GET", f"/_cat/indices/{place}-*?format=json&h=index")
    ]
    names = sorted(found)
    with ExitStack() as altered:
        for name in names:
            engine.request("PUT", f"/{name}/_settings", _ALL)
            altered.callback(engine.request, "PUT", f"/{name}/_settings", _USUAL)
        held = _await_released(engine, names)
        left = [name for name in names if not _merged(engine, name, deadline_s) or name in held]
    return Expunged(names, left)


def _merged(engine: SearchEngine, name: str, deadline_s: float) -> bool:
    """Merges an index; tells whether no segment is left that had former documents."""
    engine.request("POST", f"/{name}/{_FLUSH}")
    former = _with_former(engine, name)
    asked = engine.request("POST", f"/{name}/{_MERGE}")
    _await(engine, asked["task"], deadline_s)
    # what was merged goes once it is committed, and searches use the new segment
    engine.request("POST", f"/{name}/{_FLUSH}")
    engine.request("POST", f"/{name}/_refresh")
    return not former & _with_former(engine, name)


def _await_released(engine: SearchEngine, names: Iterable[str]) -> set[str]:
    """Waits until no copy asks for what was written before now; returns indices where one does."""
    written = {
        name: {
            shard: max(copy["seq_no"]["max_seq_no"] for copy in copies)
            for shard, copies in _copies(engine, name).items()
        }
        for name in names
    }
    deadline = time.monotonic() + _RELEASE_S
    held = set(written)
    while held:
        held = {name for name in held if not _released(engine, name, written[name])}
        if time.monotonic() > deadline:
            break
        if held:
            time.sleep(_POLL_S)
    return held


def _released(engine: SearchEngine, name: str, written: Mapping[str, int]) -> bool:
    return all(
        lease["retaining_seq_no"] > written.get(shard, -1)
        for shard, copies in _copies(engine, name).items()
        for copy in copies
        for lease in copy["retention_leases"]["leases"]
    )


def _copies(engine: SearchEngine, name: str) -> dict[str, list[dict[str, Any]]]:
    said = engine.request("GET", f"/{name}/_stats?level=shards")
    copies: dict[str, list[dict[str, Any]]] = said["indices"][name]["shards"]
    return copies


def _with_former(engine: SearchEngine, name: str) -> set[tuple[str, str, str]]:
    """Segments of each copy that have former documents."""
    shards = engine.request("GET", f"/{name}/_segments")["indices"][name]["shards"]
    return {
        (shard, copy["routing"]["node"], segment)
        for shard, copies in shards.items()
        for copy in copies
        for segment, said in copy["segments"].items()
        if said["deleted_docs"]
    }


def _await(engine: SearchEngine, task: str, deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while True:
        said: Any = engine.request("GET", f"/_tasks/{task}")
        if said.get("completed"):
            return
        if time.monotonic() > deadline:
            raise SinkUnavailableError(
                "search has not merged its segments in time",
                detail=f"after {deadline_s:.0f} s",
                hint="ask again later: it goes on by itself",
            )
        time.sleep(_POLL_S)
