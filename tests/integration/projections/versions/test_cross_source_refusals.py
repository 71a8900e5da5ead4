"""What is refused of a view that another source's job reads: its drop, and a cutover unasked."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc.postgres import own_schema
from cdc.schema_change import history
from cdc.table import TableName
from headwater.runtime.java.jars import ensure
from projections.definition.registry import load
from projections.errors import VersionError
from projections.job.batch.check_dependents import stand_still
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.publishing.other_sources import readers
from projections.publishing.published_content import SourcePosition, TableVersion
from projections.publishing.published_versions import Published
from projections.versions import dependents, registry, retire
from projections.versions.version import VersionState
from tests.fix_spark import UNCOMPILED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from projections.definition.registry import Declarations
    from projections.versions.version import ViewVersion

pytestmark = pytest.mark.integration

INVOICES = TableName("public", "invoices")
VIEWS = """
from headwater import source, view

till = source("till", tables=["public.orders"])
ledger = source("ledger", tables=["public.invoices"])
view.mirror("orders", till.orders, to=["table"])
view.mirror("invoices", ledger.invoices, to=["table"])
view.sql("own", "SELECT order_id, count(*) AS n FROM invoices GROUP BY 1", ["order_id"], ["table"])
view.sql(
    "billed",
    "SELECT o.id, i.total FROM orders o JOIN invoices i ON i.order_id = o.id",
    keys=["id"],
    to=["table"],
)
view.sql("sums", "SELECT sum(total) AS total FROM billed", keys=["total"], to=["table"])
"""
COLUMNS = {"order_id": pa.int64(), "total": pa.int64()}


@dataclass(frozen=True, slots=True)
class Ledger:
    """The second of two sources, as a command on its views finds it; no job runs.

    Attributes:
        connection: To its database.
        tables: Folder of all tables.
        declared: What both sources declare.
        config: Of its job.
    """

    connection: psycopg.Connection[Any]
    tables: Path
    declared: Declarations
    config: JobConfig

    @property
    def spec(self) -> JobSpec:
        own = self.declared.of_source("ledger")
        derived = tuple(own.derived.values())
        return JobSpec(
            self.config,
            views=tuple(own.views.values()),
            declared_derived=derived,
            derived=derived,
            cross_reads=self.declared.cross_reads("ledger"),
        )

    def version(self, *left_out: str) -> ViewVersion:
        """Makes another version of the invoices, published beside the first."""
        view = replace(self.declared.views["invoices"], left_out=left_out)
        number = registry.add(self.connection, "ledger", view)
        place = f"invoices.v{number}"
        assert registry.move(self.connection, "ledger", place, VersionState.HELD, set(VersionState))
        fill(self.tables / place, {n: t for n, t in COLUMNS.items() if n not in left_out})
        published = Published(self.tables, "ledger")
        published.publish(1, 0x200 + number, {place: 0})
        return registry.of_view(self.connection, "ledger", "invoices")[-1]


def fill(path: Path, columns: dict[str, pa.DataType]) -> None:
    write_deltalake(str(path), pa.table({n: pa.array([1], t) for n, t in columns.items()}))


@pytest.fixture
def ledger(database: str, tmp_path: Path) -> Iterator[Ledger]:
    (tmp_path / "views.py").write_text(VIEWS)
    declared = load(tmp_path / "views.py")
    config = replace(
        JobConfig.of_tables(
            "ledger", tmp_path, tuple(ensure("spark")), master="local[1]", conf=UNCOMPILED
        ),
        source_dsn=database,
    )
    tables = config.addresses.tables
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE invoices (order_id bigint PRIMARY KEY, total bigint)")
        own_schema.ensure(connection)
        history.observe(connection, [INVOICES])
        registry.register(connection, "ledger", [declared.views["invoices"]])
        fill(tables / "invoices", COLUMNS)
        fill(tables / "orders", {"id": pa.int64()})
        fill(tables / "billed", {"id": pa.int64(), "total": pa.int64()})
        fill(tables / "sums", {"total": pa.int64()})
        Published(tables, "ledger").publish(1, 0x200, {"invoices": 0})
        yield Ledger(connection, tables, declared, config)


def publish_readers(tables: Path, made_from: str = "invoices") -> None:
    """Has the job of the first source publish its views, at a boundary of each source."""
    till = Published(tables, "till")
    till.publish(1, 0x10, {"orders": 0}, complete=False)
    newest = till.newest()
    assert newest is not None
    others = {"ledger": SourcePosition(1, 0x200)}
    made = {
        "billed": TableVersion(0, 1, 0x10, {"orders": 0, made_from: 0}, "q", others),
        "sums": TableVersion(0, 1, 0x10, {"billed": 0}, "q", others),
    }
    till.complete(newest, made, others)


@pytest.mark.parametrize("place", ["invoices", "invoices.v2"])
def test_a_view_that_another_source_s_view_is_made_from_is_not_dropped(
    ledger: Ledger, place: str
) -> None:
    ledger.version()
    publish_readers(ledger.tables, place)
    before = registry.read(ledger.connection, "ledger")
    spec = replace(ledger.spec, declared_derived=(), derived=())

    with pytest.raises(VersionError, match="made from view invoices") as refused:
        retire.withdraw(ledger.connection, spec, "invoices")

    assert "billed of source till" == refused.value.detail
    assert "cut over" in str(refused.value.hint)
    assert before == registry.read(ledger.connection, "ledger")
    assert (ledger.tables / place / "_delta_log").is_dir()


def test_what_reads_another_view_or_has_no_table_any_more_is_no_reader(ledger: Ledger) -> None:
    def places() -> list[str]:
        return sorted(
            {each.physical_name for each in readers(ledger.tables, "ledger", {"invoices"})}
        )

    publish_readers(ledger.tables)
    assert ["billed", "sums"] == places()
    shutil.rmtree(ledger.tables / "sums")
    assert ["billed"] == places()
    shutil.rmtree(ledger.tables / "billed")
    assert [] == places()
    assert [] == readers(ledger.tables, "till", {"orders"})


def test_a_cutover_names_views_of_another_source_that_would_stand_still(ledger: Ledger) -> None:
    publish_readers(ledger.tables)
    fitting, lacking = ledger.version(), ledger.version("total")

    alike = dependents.of_version(ledger.connection, ledger.spec, fitting)
    then = dependents.of_version(ledger.connection, ledger.spec, lacking)

    assert (True, False) == (alike.alike, then.alike)
    assert ["own", "billed", "sums"] == [view.name for view in then.views]
    assert {"invoices", "orders"} == then.now.keys() == then.then.keys()
    still = stand_still(ledger.config, then)
    assert ["billed", "sums"] == list(still)
    assert "total" in still["billed"]
    assert "stands still with billed" == still["sums"]
    assert {} == stand_still(ledger.config, alike)
