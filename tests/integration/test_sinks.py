"""Every sink keeps the contract, on its real store."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
import redis

from projections.errors import SinkRefusedError, SinkUnavailableError, UnholdableValueError
from projections.sinks.cache import CacheSink
from projections.sinks.search import SearchSink
from projections.sinks.table import TableSink
from projections.sinks.testing import SinkContract, make_plan, make_row, upsert

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from projections.sinks.sink import Sink

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

        with pytest.raises(SinkUnavailableError):
            sink.apply(plan, [upsert(2, make_row())])
        assert sink.apply(plan, [upsert(2, make_row())]).upserted == 1
        sink.close()

    def test_a_foreign_key_is_refused_without_its_value(self, cache_url: str) -> None:
        sink = CacheSink(cache_url)
        plan = make_plan()
        with redis.Redis.from_url(cache_url) as client:
            client.rpush(f"{plan.name}:1:a", "secret")

        with pytest.raises(SinkRefusedError) as refused:
            sink.apply(plan, [upsert(1, make_row())])

        assert refused.value.detail is not None
        assert "secret" not in refused.value.detail
        sink.close()


class TestSearch(SinkContract):
    @pytest.fixture
    def open_sink(self, search_url: str) -> Callable[[], Sink]:
        return lambda: SearchSink(search_url)

    def test_a_refused_document_is_counted_and_named_without_its_value(
        self, search_url: str
    ) -> None:
        sink = SearchSink(search_url)
        plan = make_plan()
        sink.prepare(plan)

        with pytest.raises(SinkRefusedError) as refused:
            sink.apply(plan, [upsert(1, make_row(paid="secret")), upsert(1, make_row(2))])

        assert "1 documents" in refused.value.message
        assert refused.value.detail == "1 x mapper_parsing_exception in field paid"
        assert len(list(sink.documents(plan))) == 1
        sink.close()

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

        with pytest.raises(UnholdableValueError, match="column total"):
            sink.apply(plan, [upsert(1, make_row(total=Decimal("NaN")))])
        assert list(sink.documents(plan)) == []
        sink.close()

    def test_compaction_loses_nothing(self, tmp_path: Path) -> None:
        sink = TableSink(tmp_path)
        plan = make_plan()
        sink.prepare(plan)

        for version in range(1, 55):
            sink.apply(plan, [upsert(version, make_row(version % 7))])

        assert len(list(sink.documents(plan))) == 7
        sink.close()
