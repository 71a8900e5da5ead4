"""Several sources in a project: what is refused, and how sources are kept apart."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headwater.cli import main
from headwater.errors import UsageError, ViewMovedError
from headwater.platform.doctor import former_sources
from headwater.platform.others import forget_view, note_views, refuse_moved
from headwater.platform.specs import job_folder, job_spec, ready_file, runtime_spec
from headwater.project.project import Project, open_project
from headwater.project.settings.errors import ConflictingSettingsError
from headwater.reading import sql
from headwater.runtime import Endpoints
from projections.errors import DeclarationError, SeveralSourcesError
from projections.publishing.published_versions import Published, names_of_others

if TYPE_CHECKING:
    from pathlib import Path

SHOP = """
from headwater import source, view
shop = source("shop", tables=["orders"])
orders = view.mirror("orders", shop.orders)
view.sql("by_status", "SELECT status, count(*) AS n FROM orders GROUP BY status", keys=["status"])
"""
BILLING = """
billing = source("billing", tables=["invoices"])
invoices = view.mirror("invoices", billing.invoices)
"""
DSNS = """
[source.shop]
dsn = "postgresql://u@db/shop"
[source.billing]
dsn = "postgresql://u@db/billing"
"""


@pytest.fixture(autouse=True)
def _path_as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("HEADWATER_HOME", raising=False)
    monkeypatch.chdir(tmp_path)


def project(folder: Path, views: str = SHOP + BILLING, settings: str = DSNS) -> Project:
    (folder / "views.py").write_text(views, encoding="utf-8")
    (folder / "headwater.toml").write_text(settings, encoding="utf-8")
    return open_project(folder / "headwater.toml")


def test_each_source_is_a_part_with_its_own_views(tmp_path: Path) -> None:
    parts = {part.source.name: sorted(part.views) for part in project(tmp_path).parts}

    assert {"shop": ["by_status", "orders"], "billing": ["invoices"]} == parts


def test_a_project_of_one_source_keeps_all_its_names(tmp_path: Path) -> None:
    alone = project(tmp_path, SHOP, "")
    home = alone.settings.home
    spec = job_spec(alone, (), "", Endpoints())
    commands = runtime_spec(alone, tmp_path / "headwater.toml", lifeline=False).commands

    assert (alone,) == alone.parts
    assert [home / "run" / "job.json", home / "run" / "derived.json"] == [
        spec.config.status_file,
        spec.config.derived_file,
    ]
    assert (home / "run", home / "run" / "projections.ready") == (
        job_folder(alone),
        ready_file(alone, "projections"),
    )
    assert ["projections", "capture"] == [command.name for command in commands]
    assert not any("--source" in command.argv for command in commands)


def test_each_of_several_sources_has_its_own_programs_and_reports(tmp_path: Path) -> None:
    whole = project(tmp_path)
    commands = runtime_spec(whole.parts[1], tmp_path / "headwater.toml", lifeline=False).commands
    specs = [job_spec(part, (), "", Endpoints()) for part in whole.parts]

    assert ["projections.shop", "capture.shop", "projections.billing", "capture.billing"] == [
        command.name for command in commands
    ]
    assert ("--source", "billing") == commands[2].argv[-2:]
    assert 2 == len({spec.config.status_file for spec in specs})
    assert 4 == len({command.ready_file for command in commands})
    assert 1 == len({spec.config.addresses.tables for spec in specs})


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ('source("shop", tables=["x"])', "two sources have the name shop"),
        ('source("Billing", tables=["x"])', "source name is invalid"),
        ('source("bill.ing", tables=["x"])', "source name is invalid"),
        ('source("b" * 64, tables=["x"])', "source name is invalid"),
        ('view.mirror("orders", source("b", ["orders"]).orders)', "two views have the name orders"),
    ],
)
def test_names_that_cannot_be_told_apart_or_used_are_refused(
    tmp_path: Path, declared: str, said: str
) -> None:
    with pytest.raises(DeclarationError, match=said):
        project(tmp_path, SHOP + declared + "\n", "")


def test_settings_of_a_source_that_is_not_declared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="biling") as refused:
        project(tmp_path, settings=DSNS.replace("billing]", "biling]"))

    assert "billing" in str(refused.value.hint)


@pytest.mark.parametrize(
    "same",
    ["postgresql://o@db:5432/shop?sslmode=require", "host=db dbname=shop"],
)
def test_one_database_under_two_names_is_refused(tmp_path: Path, same: str) -> None:
    with pytest.raises(ConflictingSettingsError, match="shop and billing are the same database"):
        project(tmp_path, settings=DSNS.replace("postgresql://u@db/billing", same))


def test_topics_that_kafka_takes_for_one_are_refused(tmp_path: Path) -> None:
    views = """
from headwater import source
source("shop", tables=["eu_public.orders"])
source("shop_eu", tables=["public.orders"])
"""
    with pytest.raises(ConflictingSettingsError, match="Kafka"):
        project(tmp_path, views, "")
    escaped = views.replace('orders"])', 'orders"], escaped_topics=["public.orders"])')
    escaped = escaped.replace('escaped_topics=["public', 'escaped_topics=["eu_public', 1)
    assert ("shop", "shop_eu") == project(tmp_path, escaped, "").sources


def test_a_standalone_cluster_that_the_first_job_would_take_whole_is_refused(
    tmp_path: Path,
) -> None:
    cluster = '[spark]\nmaster = "spark://spark-1.example:7077"\n'
    with pytest.raises(ConflictingSettingsError, match="all cores") as refused:
        project(tmp_path, settings=DSNS + cluster)

    assert "spark.cores.max" in str(refused.value.hint)
    limited = project(tmp_path, settings=DSNS + cluster + '[spark.conf]\n"spark.cores.max" = "4"\n')
    jobs = [job_spec(part, (), "", Endpoints()).config for part in limited.parts]
    assert ["4", "4"] == [config.conf["spark.cores.max"] for config in jobs]
    assert {cluster.split('"')[1]} == {config.master for config in jobs}
    project(tmp_path, SHOP, DSNS.partition("[source.billing]")[0] + cluster)


@pytest.mark.parametrize("spark", ["workers = 2", 'master = "yarn"', 'master = "k8s://https://c"'])
def test_jobs_of_several_sources_share_a_cluster(tmp_path: Path, spark: str) -> None:
    assert ("shop", "billing") == project(tmp_path, settings=f"{DSNS}[spark]\n{spark}\n").sources


BOTH = """
view.sql("both", "SELECT i.id FROM invoices i JOIN orders o ON i.id = o.id", ["id"])
view.sql("of_both", "SELECT count(*) AS n FROM both", ["n"])
"""
MAIL = """
mail = source("mail", tables=["letters"])
view.mirror("letters", mail.letters)
view.sql("mailed", "SELECT l.id FROM invoices i JOIN letters l ON i.id = l.id", ["id"])
"""


CHAINED = """
view.sql("all", "SELECT o.id FROM orders o JOIN mailed m ON m.id = o.id", ["id"])
"""


def test_the_source_declared_first_maintains_a_view_over_several(tmp_path: Path) -> None:
    whole = project(tmp_path, SHOP + BILLING + BOTH)
    shop, billing = whole.parts

    assert ["both", "by_status", "of_both", "orders"] == sorted(shop.views)
    assert {"both": ("shop", "billing"), "of_both": ("shop", "billing")} == {
        name: whole.declarations.sources_of(name) for name in ("both", "of_both")
    }
    assert {"invoices": "billing"} == shop.cross_reads.read
    assert {"both": "shop", "of_both": "shop"} == billing.cross_reads.readers
    assert {"invoices"} == billing.cross_reads.fed
    assert (frozenset(), {}) == (shop.cross_reads.fed, billing.cross_reads.read)


def test_tables_that_another_source_reads_keep_a_feed_of_their_changes(tmp_path: Path) -> None:
    billing = project(tmp_path, SHOP + BILLING + BOTH).parts[1]
    spec = job_spec(billing, (), "", Endpoints())

    assert billing.cross_reads == spec.cross_reads
    assert spec.config.derived_file_of("shop").parent == job_folder(billing).parent / "shop"


def test_a_view_of_another_source_that_combines_several_is_not_read(tmp_path: Path) -> None:
    views = f"{SHOP}{BILLING}{MAIL}{CHAINED}"
    with pytest.raises(SeveralSourcesError, match="view all of source shop reads mailed") as error:
        project(tmp_path, views, "")

    assert "billing, mail" in str(error.value.detail)
    assert "declare source billing first" in str(error.value.hint)


def test_a_view_over_several_sources_is_not_replayed_nor_what_is_made_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, SHOP + BILLING + BOTH)

    for view in ("both", "of_both"):
        assert 2 == main(["view", "replay", view])
        said = " ".join(capsys.readouterr().err.split())
        assert f"view {view} combines several sources, and an archive has one" in said
        assert "both reads invoices of source billing" in said
        assert f"headwater view verify --source shop {view}" in said
    assert 2 == main(["view", "replay", "by_status"])  # of one source: only its database is missing
    assert "does not answer" in " ".join(capsys.readouterr().err.split())


def test_commands_ask_for_a_source_where_several_could_be_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path)

    assert 2 == main(["source", "repair"])
    assert "--source shop" in capsys.readouterr().err
    assert 2 == main(["token", "--source", "shpo"])
    assert "shop" in capsys.readouterr().err


def test_lists_name_the_source_of_each_view(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path)

    assert 0 == main(["view", "list", "--json"])
    every = json.loads(capsys.readouterr().out)
    assert 0 == main(["view", "list", "--json", "--source", "billing"])
    of_one = json.loads(capsys.readouterr().out)

    assert {("shop", "orders"), ("shop", "by_status"), ("billing", "invoices")} == {
        (row["source"], row["view"]) for row in every
    }
    assert ["invoices"] == [row["view"] for row in of_one]


def test_doctor_warns_of_a_source_that_is_declared_no_more(tmp_path: Path) -> None:
    alone = project(tmp_path, SHOP, "")
    for name in ("shop", "billing", ".aside"):
        (alone.settings.home / "checkpoints" / name).mkdir(parents=True)

    found = list(former_sources(alone))

    assert ["source billing was captured"] == [each.message[:27] for each in found]
    assert "--source billing" in str(found[0].hint)


def published(tables: Path) -> None:
    """Two sources with a view each, at boundaries of their own."""
    for source, view, lsn in (("shop", "orders", 0x10), ("billing", "invoices", 0x900)):
        write_deltalake(str(tables / view), pa.table({"id": [1, 2]}))
        Published(tables, source).publish(1, lsn, {view: 0})


def test_a_query_joins_views_of_two_sources_each_at_its_own_boundary(tmp_path: Path) -> None:
    published(tmp_path)

    found = sql.run("SELECT o.id FROM orders o JOIN invoices i ON i.id = o.id", tmp_path)

    assert 2 == found.num_rows


def test_a_position_is_read_in_the_one_source_whose_views_are_named(tmp_path: Path) -> None:
    published(tmp_path)

    assert 2 == sql.run("SELECT id FROM orders", tmp_path, "0/10").num_rows
    with pytest.raises(sql.AsOfError, match="of one source"):
        sql.run("SELECT o.id FROM orders o JOIN invoices i ON i.id = o.id", tmp_path, "0/900")


def test_a_view_with_the_rows_of_another_source_is_refused(tmp_path: Path) -> None:
    whole = project(tmp_path)
    tables = whole.settings.home / "tables"
    write_deltalake(str(tables / "invoices"), pa.table({"id": [1]}))
    shop = Published(tables, "shop")
    shop.publish(1, 0x10, {"invoices": 0})

    refuse_moved(whole.part("shop"))
    with pytest.raises(ViewMovedError, match="invoices has the rows of source shop"):
        refuse_moved(whole.part("billing"))
    assert {"invoices"} == names_of_others(tables, "billing")
    shop.withdraw("invoices")
    refuse_moved(whole.part("billing"))


def test_a_view_without_a_table_that_another_source_has_filled_is_not_taken_over(
    tmp_path: Path,
) -> None:
    searched = SHOP + 'view.mirror("found", shop.orders, to=["search"])\n' + BILLING
    shop, billing = project(tmp_path, searched).parts
    Published(shop.settings.home / "tables", "shop").begin()
    note_views(shop)
    refuse_moved(billing)
    moved = SHOP + BILLING + 'view.mirror("found", billing.invoices, to=["search"])\n'
    shop, billing = project(tmp_path, moved).parts
    with pytest.raises(ViewMovedError) as refused:
        refuse_moved(billing)
    forget_view(shop, "found")
    refuse_moved(billing)

    assert "headwater view drop found --source shop --yes" in str(refused.value.hint)
