"""Records are taken apart fast as they are taken apart slowly, whatever a producer writes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.archive import table
from tests.fix_seeds import examples

ODD = st.sampled_from(
    [
        None,
        0,
        -1,
        1 << 57,
        1 << 63,
        True,
        1.5,
        "",
        "c",
        '{"a":1}',
        [],
        [1],
        {},
        {"source": {"a": 1}},
    ]
).map(deepcopy)
TEXTS = st.sampled_from(["", "ü", '"', '},"transaction":{"', ',"source":{', '{"before":null', "\\"])
PLACES = st.sampled_from(
    [
        *("before", "after", "source", "transaction", "op", "ts_ms", "more"),
        *("source.sequence", "source.ts_us", "source.txId", "source.schema", "source.more"),
        *("transaction.total_order", "after.id", "after.note"),
    ]
)


def usual(note: str, operation: str) -> dict[str, Any]:
    """An envelope as the connector writes it."""
    return {
        "before": None,
        "after": {"id": 1, "note": note},
        "source": {
            "schema": 'a "quoted" one' if note == '"' else "public",
            "table": "orders",
            "txId": 7,
            "sequence": '[null,"900"]' if note else '["800","900"]',
            "ts_us": 1_000,
            "ts_ms": 1,
        },
        "transaction": {"id": "7", "total_order": 3, "data_collection_order": 3},
        "op": operation,
        "ts_ms": 2,
        "ts_us": 2_000,
        "ts_ns": 2_000_000,
    }


@settings(max_examples=examples(1_000), deadline=None)
@given(data=st.data())
def test_a_record_has_the_same_parts_however_it_is_read(data: st.DataObject) -> None:
    draw = data.draw
    said = usual(draw(TEXTS), draw(st.sampled_from("curdtm")))
    for place in draw(st.lists(PLACES, max_size=2)):
        *outer, name = place.split(".")
        inner = said[outer[0]] if outer else said
        if isinstance(inner, dict):
            inner[name] = draw(ODD)
    if draw(st.booleans()):
        said = {name: said[name] for name in draw(st.permutations(list(said)))}
    value: bytes | None = orjson.dumps(said)
    cut = draw(st.integers(0, 12))
    if value is not None and cut < 4:
        value = (None, value[:-1], value.replace(b":", b": ", 1), value + b"\xff")[cut]
    key = draw(st.sampled_from([b'{"id":1}', b"null", b"[1]", b"{}", b"\xff", b"{", None]))
    epoch = draw(st.sampled_from(["1", "1", "1", "127", "128", "01", "x", None]))

    expected = tuple(table._record(key, value, epoch).values())
    found = table._decoded(key, value, epoch)

    assert expected == found


def test_the_usual_record_is_read_fast() -> None:
    value = orjson.dumps(usual("a note", "u"))

    parts = dict(zip(table._DECODED, table._usual(b'{"id":1}', value, "1"), strict=True))

    assert {"id": 1, "note": "a note"} == orjson.loads(parts["after"])
    assert (900, 0, 3, 1_000) == tuple(
        parts[name] for name in ("lsn", "commit_lsn", "total_order", "committed_at")
    )
