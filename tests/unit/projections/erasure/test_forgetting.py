"""What is forgotten is in no file, and what is left is as it was."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.lsn import Lsn
from headwater.operations.erase_rows import not_searched
from projections.archive import replay
from projections.archive.task import ReplayTarget
from projections.common.table_pins import pinned
from projections.definition.views import Store
from projections.erasure import file_search
from projections.erasure.archive import ArchivedTopic, Through
from projections.erasure.certificate import Certificate, Erased, keep, now
from projections.erasure.erasure import Erasure
from projections.erasure.file_search import Searched, search_files
from projections.erasure.residue import forget_past
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.stores.delta.sink import WarehouseSink
from projections.stores.delta.table_format import CONFIGURATION, FEED
from tests.fix_archive import archived, compacted
from tests.fix_log import PLAN, TOPIC, Source, numbered, sources
from tests.fix_seeds import examples
from tests.support.memory_sink import MemorySink

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CANARY = "Zephyrine Quillfeather"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def table_of(place: Path) -> DeltaTable:
    made = DeltaTable.create(str(place), SCHEMA, configuration={**CONFIGURATION, **FEED})
    people = {"id": [1, 2, 3], "name": [CANARY, "bob", "eve"]}
    write_deltalake(made, pa.table(people), mode="append")
    return made


def put(table: DeltaTable, number: int, name: str) -> None:
    rows = pa.table({"id": [number], "name": [name]})
    merger = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def names_in(table: DeltaTable) -> set[str]:
    return set(table.to_pyarrow_table().column("name").to_pylist())


def test_a_table_keeps_nothing_of_its_past(tmp_path: Path) -> None:
    table = table_of(tmp_path / "people")
    put(table, 1, "nobody")
    kept = table.version()
    put(table, 4, "ann")
    (tmp_path / "people" / "left-behind.parquet").write_bytes(CANARY.encode())
    before = search_files(tmp_path, [CANARY])

    forget_past(tmp_path / "people", [kept])

    places = {path.split("/")[1] for path in before.matching_files}
    assert {"_change_data", "_delta_log", "left-behind.parquet"} <= places
    assert [] == search_files(tmp_path, [CANARY]).matching_files
    assert {"nobody", "bob", "eve"} == names_in(DeltaTable(tmp_path / "people", version=kept))
    assert {"nobody", "bob", "eve", "ann"} == names_in(DeltaTable(tmp_path / "people"))


def test_a_table_that_was_created_again_keeps_nothing_either(tmp_path: Path) -> None:
    """Versions of its predecessor are published still, with numbers that it has not reached."""
    table = table_of(tmp_path / "people")
    put(table, 1, "nobody")

    forget_past(tmp_path / "people", [table.version() + 19])

    assert [] == search_files(tmp_path, [CANARY]).matching_files
    assert {"nobody", "bob", "eve"} == names_in(DeltaTable(tmp_path / "people"))


def test_versions_that_may_be_published_next_stay_readable(tmp_path: Path) -> None:
    table = table_of(tmp_path / "people")
    put(table, 1, "nobody")
    published = table.version()
    put(table, 4, "ann")
    written = table.version()
    put(table, 4, "anna")

    forget_past(tmp_path / "people", [published])

    assert [] == search_files(tmp_path, [CANARY]).matching_files
    assert {"nobody", "bob", "eve", "ann"} == names_in(
        DeltaTable(tmp_path / "people", version=written)
    )


def test_a_writer_that_knows_an_earlier_version_goes_on_from_there(tmp_path: Path) -> None:
    table = table_of(tmp_path / "people")
    known = DeltaTable(tmp_path / "people")
    for number in range(30):
        put(table, number + 10, f"name {number}")
    put(table, 1, "nobody")

    put(table, 1, CANARY)  # between two checkpoints, and in one
    put(table, 41, "more")
    table.create_checkpoint()
    put(table, 1, "nobody")
    asked = len(search_files(tmp_path / "people" / "_delta_log", [CANARY]).matching_files)

    forget_past(tmp_path / "people")
    forget_past(tmp_path / "people")
    assert asked
    assert [] == search_files(tmp_path, [CANARY]).matching_files
    known.update_incremental()
    put(known, 99, "late")

    found = names_in(DeltaTable(tmp_path / "people"))
    assert 35 == len(found)
    assert {"nobody", "late", "name 29"} <= found


def test_a_search_finds_what_is_compressed_or_lies_within(tmp_path: Path) -> None:
    nested = pa.table(
        {
            "one": pa.array([[{"key": "k", "value": CANARY.encode()}], []]),
            "other": pa.array(["x", "y"]),
        }
    )
    (tmp_path / "in").mkdir()
    pq.write_table(nested, tmp_path / "in" / "nested.parquet", compression="zstd")
    words = pa.table({"w": pa.array([CANARY, "b"]).dictionary_encode()})
    pq.write_table(words, tmp_path / "words.parquet", compression="zstd")
    (tmp_path / "log").write_text(f"...{CANARY}...")
    (tmp_path / "empty").touch()
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "passed").mkdir()
    (tmp_path / "passed" / "log").write_text(CANARY)

    found = search_files(tmp_path, [CANARY, "nowhere"], but=[tmp_path / "passed"])

    assert ["in/nested.parquet", "log", "words.parquet"] == found.matching_files
    assert (2, 5) == (found.texts, found.files)


@given(
    content=st.binary(max_size=40),
    texts=st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=3),
    place=st.integers(0, 40),
    piece_bytes=st.integers(1, 12),
)
def test_a_text_is_found_wherever_a_piece_of_a_file_ends(
    content: bytes,
    texts: list[str],
    place: int,
    piece_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("found")
    content = content.replace(b"a", b"-").replace(b"b", b"-")
    there = [content, content[:place] + texts[-1].encode() + content[place:]]
    for file, each in zip(("without", "with"), there, strict=True):
        (folder / file).write_bytes(each)

    with mock.patch.object(file_search, "_CHUNK_BYTES", piece_bytes):
        assert ["with"] == search_files(folder, texts).matching_files


@settings(max_examples=examples(25), deadline=None)
@given(source=sources(), data=st.data())
def test_an_archive_without_a_key_is_replayed_into_all_others(
    source: Source, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    archive = tmp_path_factory.mktemp("home") / "shop"
    key = data.draw(st.integers(1, 6))
    through = Through(1, Lsn(source.lsn))
    middle = data.draw(st.integers(0, len(source.topic)))
    read = source.read_now(key)
    records = numbered([*source.topic, read])
    archived(archive, TOPIC, records[:middle])
    archived(archive, TOPIC, records[middle:])
    if data.draw(st.booleans()):
        compacted(archive)
    topic = ArchivedTopic(archive, TOPIC)

    found = topic.find([f'{{"id":{key}}}'], through)
    erased = topic.erase(found.texts, through)
    again = topic.erase(found.texts, through)
    assert topic.forget_past()

    assert 0 == again
    assert found.records == erased
    assert [] == list(topic.rows(found.texts, through))
    sink = MemorySink()
    filled = replay.replay(archive, [ReplayTarget((PLAN,), lambda: sink)])
    rows = {row["id"]: row for row in sink.documents(PLAN)}
    # a key that a row came from, and what was made from that, is read again with it
    lacking = {each.key for each in filled.waiting[0]} | found.former
    numbers = {orjson.loads(text)["id"] for text in lacking}
    assert {k: row for k, row in source.rows.items() if k not in numbers} == {
        k: row for k, row in rows.items() if k not in numbers
    }


def test_an_archive_that_is_read_keeps_its_files_until_then(tmp_path: Path) -> None:
    source = Source()
    source.together([[("copy", 1, 2)], [("note", 1)]], Random(1))  # noqa: S311
    archived(tmp_path / "shop", TOPIC, numbered(source.topic))
    topic, through = ArchivedTopic(tmp_path / "shop", TOPIC), Through(1, Lsn(source.lsn))
    version = DeltaTable(tmp_path / "shop").version()

    with pinned(tmp_path / "shop", version):
        topic.erase(['{"id":1}'], through)
        early = topic.forget_past()
    late = topic.forget_past()

    assert (False, True) == (early, late)
    assert [] == search_files(tmp_path, ["b1-1"]).matching_files


def test_a_certificate_says_what_was_done_and_is_the_owners_alone(tmp_path: Path) -> None:
    said = {
        "source": "shop",
        "subject": "public.people",
        "keys": ['{"id":1}'],
        "former_keys": 0,
        "through": "0/1",
        "begun_at": now(),
        "ended_at": "2026-01-02T03:04:05+00:00",
        "values_searched": 1,
        "files_searched": 2,
        "bytes_searched": 3,
    }
    done = Certificate(**said, erased=[Erased("archive", "records", 1)], found_in=[])
    found = Certificate(**said, erased=[], found_in=["log"])
    half = Certificate(**said, erased=[Erased("cache", "files", 0, complete=False)], found_in=[])

    first, second = keep(done, tmp_path / "certificates"), keep(found, tmp_path / "certificates")

    assert [True, False, False] == [each.complete for each in (done, found, half)]
    assert ["20260102T030405-public.people.json", "20260102T030405-public.people-2.json"] == [
        first.name,
        second.name,
    ]
    assert 0o600 == first.stat().st_mode & 0o777
    assert ['{"id":1}'] == orjson.loads(first.read_bytes())["keys"]


def test_a_store_is_asked_for_rows_that_should_be_gone(tmp_path: Path) -> None:
    source = Source()
    source.together([[("copy", 1, 2)]], Random(1))  # noqa: S311
    archived(tmp_path / "archive" / "shop", TOPIC, numbered(source.topic))
    plan = replace(PLAN, to=frozenset({Store.TABLE}))
    spec = replace(JobSpec(JobConfig.of_tables("shop", tmp_path, ())), plans=(plan,))
    sink = WarehouseSink(spec.config.addresses.tables)
    sink.prepare(plan)
    replay.replay(spec.config.archive, [ReplayTarget((plan,), lambda: sink)])
    there = [{"id": 1}, {"id": 2}, {"id": 77}]
    texts = [orjson.dumps(key).decode() for key in there]

    early = Erasure(spec, plan.schema.table, plan.topic, Through(1, Lsn(0))).left(texts)
    late = Erasure(spec, plan.schema.table, plan.topic, Through(1, Lsn(source.lsn))).left(texts)

    assert [Erased("table", "rows of the keys left", 0)] == early
    assert [Erased("table", "rows of the keys left", 2, complete=False)] == late


def test_a_certificate_says_that_nothing_could_be_looked_for() -> None:
    (none,), (some,) = map(list, map(not_searched, (Searched(), Searched(3, 10))))

    assert "none was looked for" in none
    assert "compressed" in some


def test_what_a_row_still_has_is_not_looked_for(tmp_path: Path) -> None:
    source = Source()
    source.together([[("copy", 1, 2)], [("note", 1)]], Random(1))  # noqa: S311
    through = Through(1, Lsn(source.lsn))
    archived(tmp_path / "shop", TOPIC, numbered([*source.topic, source.read_now(1)]))
    topic = ArchivedTopic(tmp_path / "shop", TOPIC)

    before = [row for _, row in topic.rows(['{"id":1}'], through)]
    after = [row for _, row in topic.rows(['{"id":1}'], through, later=True)]

    assert {"n1", "n2"} == {row["note"] for row in before}
    assert [source.rows[1]] == after
