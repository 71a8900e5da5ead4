"""Every sink keeps the contract, on its real store."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import redis
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.changes.row_change import Applied
from projections.definition.cache_options import CacheOptions
from projections.errors import (
    CacheFullError,
    CacheReadOnlyError,
    SinkRefusedError,
    SinkUnavailableError,
    UnholdableValueError,
)
from projections.stores.delta.table_sink import TableSink
from projections.stores.opensearch.sink import SearchSink
from projections.stores.valkey import client as valkey_client
from projections.stores.valkey import row as valkey_row
from projections.stores.valkey.sink import CacheSink
from tests.fix_seeds import examples
from tests.oracles.sink_contract import (
    SinkContract,
    delete,
    drawn_changes,
    latest,
    make_plan,
    make_row,
    upsert,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from projections.changes.sink import Sink

pytestmark = pytest.mark.integration


class TestCache(SinkContract):
    @pytest.fixture
    def open_sink(self, cache_url: str) -> Callable[[], Sink]:
        return lambda: CacheSink(cache_url, "t:")

    def test_a_restarted_server_is_given_the_script_again(self, cache_url: str) -> None:
        sink = CacheSink(cache_url)
        plan = make_plan()
        sink.apply(plan, [upsert(1, make_row())])
        redis.Redis.from_url(cache_url).script_flush()

        assert sink.apply(plan, [upsert(2, make_row())]).upserted == 1
        sink.close()

    def test_a_full_server_is_told_as_such_and_takes_the_batch_once_there_is_room(
        self, cache_url: str
    ) -> None:
        sink = CacheSink(cache_url)
        plan = replace(make_plan(), cache=CacheOptions(lookups=["{part}"], counters={"n": "*"}))
        changes = [upsert(1, make_row(n)) for n in range(3)]
        with redis.Redis.from_url(cache_url) as client:
            usual = client.config_get("maxmemory")["maxmemory"]
            client.config_set("maxmemory", 1)
            try:
                with pytest.raises(CacheFullError) as raised:
                    sink.apply(plan, changes)
            finally:
                client.config_set("maxmemory", usual)
            left = list(client.scan_iter(f"*{plan.name}*"))

        assert (True, []) == (raised.value.retriable, left)
        assert Applied(upserted=3) == sink.apply(plan, changes)
        sink.close()

    def test_a_replica_is_told_as_such(self, cache_url: str) -> None:
        sink = CacheSink(cache_url)
        plan = make_plan()
        with redis.Redis.from_url(cache_url) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            try:
                with pytest.raises(CacheReadOnlyError):
                    sink.apply(plan, [upsert(1, make_row())])
            finally:
                client.execute_command("REPLICAOF", "NO", "ONE")

        assert Applied(upserted=1) == sink.apply(plan, [upsert(1, make_row())])
        sink.close()

    def test_many_and_large_rows_go_in_calls_of_bounded_size(
        self, cache_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(valkey_client, "UNDER_WAY_BYTES", 100_000)
        sink = CacheSink(cache_url)
        plan = make_plan()
        rows = [make_row(n, note="x" * (n % 5 * 20_000)) for n in range(1_300)]
        changes = [upsert(1, row) for row in rows]

        with redis.Redis.from_url(cache_url) as client:
            client.script_flush()  # and the server is given the script amid all this
        assert Applied(upserted=1_300) == sink.apply(plan, changes)
        assert Applied(stale=1_300) == sink.apply(plan, changes)
        assert 1_300 == sum(1 for _ in sink.documents(plan))
        sink.close()

    def test_a_row_that_is_too_large_holds_up_no_other(
        self, cache_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(valkey_row, "ROW_SIZE_MAX", 2_000)
        sink = CacheSink(cache_url)
        plan = make_plan()

        applied = sink.apply(
            plan, [upsert(1, make_row(1, note="x" * 3_000)), upsert(1, make_row(2))]
        )

        (refused,) = applied.refused
        assert isinstance(refused.error, UnholdableValueError)
        assert 1 == applied.upserted
        sink.close()

    def test_a_server_that_is_gone_is_unavailable(self) -> None:
        sink = CacheSink("redis://127.0.0.1:9/0")

        with pytest.raises(SinkUnavailableError):
            sink.apply(make_plan(), [upsert(1, make_row())])
        sink.close()

    def test_a_foreign_key_is_refused_without_its_value(self, cache_url: str) -> None:
        sink = CacheSink(cache_url)
        plan = make_plan()
        with redis.Redis.from_url(cache_url) as client:
            client.rpush(f"{plan.name}:1:a", "secret")

        applied = sink.apply(plan, [upsert(1, make_row(n)) for n in (1, 2)])

        (refused,) = applied.refused
        assert ("WRONGTYPE", (1, "a")) == (refused.error.detail, refused.change.key)
        assert (1, 2) == (applied.upserted, next(iter(sink.documents(plan)))["id"])
        assert [0] == sink.versions(plan, [refused.change])
        assert 0 == sink.sweep(plan, 1 << 56)
        sink.close()


class TestSearch(SinkContract):
    @pytest.fixture
    def open_sink(self, search_url: str) -> Callable[[], Sink]:
        return lambda: SearchSink(search_url)

    def test_a_refused_document_is_named_without_its_value_and_holds_up_no_other(
        self, search_url: str
    ) -> None:
        sink = SearchSink(search_url)
        plan = make_plan()
        sink.prepare(plan)

        applied = sink.apply(plan, [upsert(1, make_row(paid="secret")), upsert(1, make_row(2))])

        (refused,) = applied.refused
        assert isinstance(refused.error, SinkRefusedError)
        assert refused.error.detail == "mapper_parsing_exception in field paid"
        assert (1, [2]) == (applied.upserted, [row["id"] for row in sink.documents(plan)])
        sink.close()

    def test_what_is_written_while_another_instance_sweeps_does_not_stay(
        self, search_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink, other = SearchSink(search_url), SearchSink(search_url)
        plan = make_plan()
        sink.prepare(plan)
        send = sink.engine.bulk
        swept: list[int] = []

        def sweep_first(*request: Any) -> Any:
            if not swept:
                swept.append(other.sweep(plan, upsert(5, make_row()).version))
            return send(*request)

        monkeypatch.setattr(sink.engine, "bulk", sweep_first)
        sink.apply(plan, [upsert(4, make_row(1)), upsert(6, make_row(2))])

        assert ([0], [2]) == (swept, [row["id"] for row in sink.documents(plan)])
        sink.close()
        other.close()

    def test_a_server_that_is_gone_is_unavailable(self) -> None:
        sink = SearchSink("http://127.0.0.1:9")

        with pytest.raises(SinkUnavailableError):
            sink.prepare(make_plan())
        sink.close()


class TestTable(SinkContract):
    @pytest.fixture
    def open_sink(self, tmp_path: Path) -> Callable[[], Sink]:
        return lambda: TableSink(tmp_path)

    def test_a_value_without_exact_form_is_refused_by_column(self, tmp_path: Path) -> None:
        sink = TableSink(tmp_path)
        plan = make_plan()
        sink.prepare(plan)

        odd = upsert(1, make_row(5, total=Decimal("NaN")))
        good = [upsert(1, make_row(number)) for number in (1, 2, 3)]
        applied = sink.apply(plan, [*good, odd, delete(1, 6)])

        (refused,) = applied.refused
        assert (odd, 3, 1) == (refused.change, applied.upserted, applied.deleted)
        assert isinstance(refused.error, UnholdableValueError)
        assert "column total" in refused.error.message
        assert [1, 2, 3] == sorted(row["id"] for row in sink.documents(plan))
        sink.close()

    def test_compaction_loses_nothing(self, tmp_path: Path) -> None:
        sink = TableSink(tmp_path, small_bytes=0)  # one that is written whole is one file
        plan = make_plan()
        sink.prepare(plan)

        for version in range(1, 55):
            sink.apply(plan, [upsert(version, make_row(version % 7))])

        assert len(list(sink.documents(plan))) == 7
        sink.close()


class TestTableThatIsMerged(SinkContract):
    """Delta merges every change, as in a table that is not small."""

    @pytest.fixture
    def open_sink(self, tmp_path: Path) -> Callable[[], Sink]:
        return lambda: TableSink(tmp_path, small_bytes=0)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(batches=st.lists(drawn_changes, max_size=4))
def test_a_small_table_is_written_as_delta_merges_it(
    batches: list[list[tuple[int, str, int, bool]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan, folder = make_plan(), tmp_path_factory.mktemp("tables")
    whole, merging = TableSink(folder / "whole"), TableSink(folder / "merged", small_bytes=0)
    for sink in (whole, merging):
        sink.prepare(plan)
    for batch in batches:
        changes = latest(
            upsert(version, make_row(number, part)) if live else delete(version, number, part)
            for number, part, version, live in batch
        )
        if changes:
            ours, deltas = (sink.apply(plan, changes) for sink in (whole, merging))
            assert replace(deltas, size_bytes=ours.size_bytes) == ours

    shown = [sorted(map(repr, sink.versioned(plan))) for sink in (whole, merging)]
    assert shown[0] == shown[1]
    operations = [
        {said["operation"] for said in DeltaTable(str(folder / each / plan.name)).history()}
        for each in ("whole", "merged")
    ]
    assert "MERGE" not in operations[0]
