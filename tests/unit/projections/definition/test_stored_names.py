"""What an earlier release has stored is read: no name of a module or class in it has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import orjson
import pytest

from projections.common.spark_checkpoint import CheckpointMark
from projections.definition.codec import decoded, digest, encoded
from projections.definition.registry import load
from projections.definition.views import Store
from projections.publishing.published_content import (
    Current,
    PendingRecords,
    PublishedVersion,
    Switch,
    TableVersion,
)
from projections.verification.requests import Renewal

if TYPE_CHECKING:
    from pathlib import Path

VIEWS = """
from datetime import timedelta

from headwater import CacheOptions, Keyword, Pattern, SearchOptions, Step, Stored, Text, Tumbling
from headwater import expect, source, view

shop = source("shop", tables=["public.orders", "public.wishes"])
orders = view.mirror(
    "orders",
    shop.orders,
    keys=["id"],
    on_schema_change="pause",
    cache=CacheOptions(
        "hash", timedelta(hours=1), ["customer:{customer}:orders"], {"n:{status}": "*"}
    ),
    search=SearchOptions(
        {"note": Text(boost=2.0), "status": Keyword(), "total": Stored()}, "english"
    ),
    except_column_list=["secret"],
    expect=[expect("paid", "total > 0", "drop")],
    times={"at": "commit"},
)
wishes = view.mirror("wishes", shop.wishes, keys=["id"])
view.mirror("orders_history", shop.orders, scd=2, sequence_by="placed_at")
view.sql("by_status", "SELECT status, count(*) AS n FROM orders GROUP BY status", keys=["status"])
view.aggregate("per_hour", orders, window=Tumbling("placed_at", "1 hour"), by=["status"], count="n")
view.pattern(
    "suspects",
    orders,
    by=["customer"],
    time="placed_at",
    pattern=Pattern(
        [
            Step("small", "total < 5", times=3),
            Step("large", "true", beside=["total > 9 * small.total"]),
        ],
        within="1 hour",
    ),
    keep=["total"],
)
view.percolate("found", orders, queries=wishes, query="wanted", words=["note"])
"""

# As the release before the folders has stored them: a digest for each definition, and for what is
# computed a fingerprint. Another one would have the view computed again.
DIGESTS = {
    "orders": "ff8466d24f4c644f",
    "wishes": "7e671c845f4e01bb",
    "orders_history": "9f1554e377ac936a",
    "by_status": "030b77d6a150f33d",
    "per_hour": "bfc784edb076d36a",
    "suspects": "c36bd76bff9da51a",
    "found": "c4b30663bd62ac80",
}
FINGERPRINTS = {
    "by_status": "98eff32c26cd07bf",
    "per_hour": "5dd663ffd30108bd",
    "suspects": "0fdd825ab6d65ee0",
    "found": "64a53595810ad71c",
}

PUBLISHED = (
    b'{"number":7,"epoch":1,"lsn":256,"published_at_us":1700000000000000,"views":{"orders":'
    b'{"version":3,"epoch":1,"lsn":200,"made_from":{},"query":""},"by_status":{"version":4,'
    b'"epoch":1,"lsn":256,"made_from":{"orders":3},"query":"ab"}},"complete":true}'
)
PUBLISHED_NOW = PUBLISHED.replace(b'"}', b'","others":{}}').replace(b"true}", b'true,"others":{}}')
FILES: list[tuple[bytes, Any]] = [
    (
        PUBLISHED_NOW,
        PublishedVersion(
            7,
            1,
            256,
            1_700_000_000_000_000,
            {
                "orders": TableVersion(3, 1, 200),
                "by_status": TableVersion(4, 1, 256, {"orders": 3}, "ab"),
            },
        ),
    ),
    (
        b'{"places":{"orders":"orders.v2"},"switches":[{"at_us":5,"was":{"orders":"orders"}}]}',
        Current({"orders": "orders.v2"}, [Switch(5, {"orders": "orders"})]),
    ),
    (
        b'{"home":"h","source":"shop","query":"table","topics":{"shop.public.orders":"AAA"}}',
        CheckpointMark("h", "shop", "table", {"shop.public.orders": "AAA"}),
    ),
    (
        b'{"id":"r","view":"by_status","waiting":["search"],"since":9}',
        Renewal("r", "by_status", (Store.SEARCH,), 9),
    ),
]
BEYOND = (
    b"\x82\xa5ahead\x84\xa5epoch\x00\xacafter_commit\xff\xa8read_lsn\x00"
    b"\xa6commit\x00\xa7waiting\x90"
)


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("project") / "views.py"
    path.write_text(VIEWS)
    found = load(path)
    return {**found.views, **found.derived}


def test_a_definition_is_stored_as_the_release_before_did(declared: dict[str, Any]) -> None:
    assert DIGESTS == {name: digest(view) for name, view in declared.items()}
    for view in declared.values():
        stored = orjson.loads(orjson.dumps(encoded(view)))
        assert encoded(view) == encoded(decoded(stored))


def test_no_derived_view_is_computed_again(declared: dict[str, Any]) -> None:
    assert FINGERPRINTS == {name: declared[name].fingerprint for name in FINGERPRINTS}


@pytest.mark.parametrize(("content", "meant"), FILES, ids=lambda each: type(each).__name__)
def test_a_file_of_a_home_is_read_and_written_as_before(content: bytes, meant: Any) -> None:
    assert meant == msgspec.json.decode(content, type=type(meant))
    assert content == msgspec.json.encode(meant)


def test_a_version_published_before_views_had_several_sources_is_read() -> None:
    now = msgspec.json.decode(PUBLISHED_NOW, type=PublishedVersion)

    assert now == msgspec.json.decode(PUBLISHED, type=PublishedVersion)


def test_what_lies_beyond_a_boundary_is_read_and_written_as_before() -> None:
    assert PendingRecords() == msgspec.msgpack.decode(BEYOND, type=PendingRecords)
    assert BEYOND == msgspec.msgpack.encode(PendingRecords())
