"""What `headwater init` writes can be read, whatever a database and a folder are called."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc.capture import CaptureSpec
from cdc.table import TableName
from headwater.project.project import Project
from headwater.project.scaffold import Draft, write
from headwater.project.settings import load as load_settings
from headwater.project.spelling import VIEW_LENGTH_MAX, identifier, literal, variable, view_names
from headwater.project.survey import Choice, DatabaseSurvey
from headwater.project.views_text import views_text
from projections.definition.derived.relations import relations
from projections.definition.registry import load
from projections.definition.views import Store

ODD = [
    *("events", "columns", "tables", "name", "source", "view", "class", "import", "None", "print"),
    *("__EFMigrationsHistory", "__class__", "eventstore", "on_schema_change", "changes", "a.b"),
    *(
        'say "hi"',
        "back\\slash",
        "new\nline",
        "tab\t",
        "заказ",
        "订单",
        "ﬁle",
        "ª",
        "\u202egpj.exe",
    ),
    *(
        "'''",
        '"""',
        "{name}",
        "%s",
        "#",
        " ",
        "-",
        "1st",
        "x" * 63,
        "É" * 31,
        "🦊",
        "\x1b[31m",
        "_",
    ),
    *("\u2028", "visits", "match", "type", "self", "Order Lines", "OrderLines", "order_lines"),
]

# what Postgres takes: any text of 1 to 63 bytes without a NUL
NAMES = (
    st.one_of(st.sampled_from(ODD), st.text(min_size=1, max_size=63))
    .map(
        lambda text: text.replace("\0", "").encode("utf-8", "ignore")[:63].decode("utf-8", "ignore")
    )
    .filter(bool)
)
SCHEMAS = st.one_of(st.just("public"), st.just("acme.com"), st.sampled_from(ODD), NAMES)
TABLES = st.lists(st.builds(TableName, SCHEMAS, NAMES), min_size=1, max_size=25, unique=True)
WRITTEN = """\
\"\"\"What Headwater keeps of `shop`. `headwater plan` shows what a change here changes.\"\"\"

from headwater import source, view

shop = source(
    "shop",
    tables=[
        "public.customers",
        "public.events",
        "public.logs",
    ],
)

# The latest row of every key, in warehouse, search and cache
view.mirror("customers", shop.customers)
view.mirror("events", shop["public.events"])

# Large: in the warehouse alone
view.mirror("logs", shop.logs, to=["table"])

# public.customers public.customers
# public.events public.events
# public.logs public.logs

# Not mirrored:
#   is public.visits:
#     public.visits
"""

STORES = st.sampled_from([tuple(Store), (Store.TABLE,), (Store.TABLE, Store.CACHE), ()])


def chosen(
    source: str, tables: list[TableName], to: list[tuple[Store, ...]], *, noted: bool = True
) -> DatabaseSurvey:
    choices = [
        Choice(
            table,
            10,
            8192,
            stores,
            None if stores else f"is {table}",
            insert_only=bool(stores) and table.name == "visits",
            notes=(str(table),) if noted else (),
        )
        for table, stores in zip(tables, [*to, *[tuple(Store)] * len(tables)], strict=False)
    ]
    return DatabaseSurvey(identifier(source, 53, "db"), tuple(choices))


@settings(max_examples=50, deadline=None)
@given(folder=NAMES, tables=TABLES, to=st.lists(STORES, max_size=40))
@example(folder="view", tables=[TableName("public", name) for name in ODD], to=[])
@example(folder="source", tables=[TableName(name, name) for name in ODD], to=[])
@example(folder="a" * 51, tables=[TableName("public", "orders")], to=[])
@example(folder="_" * 50 + "b", tables=[TableName("public", "orders")], to=[])
@example(folder="a" * 38 + "_b", tables=[TableName("public", "orders")], to=[])
def test_what_is_written_declares_each_table_and_its_settings_are_read(
    folder: str, tables: list[TableName], to: list[tuple[Store, ...]]
) -> None:
    survey = chosen(folder, tables, to)
    mirrored = [choice.table for choice in survey.mirrored]
    if not mirrored:
        return
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        write(Draft(root, "host=h user=u password='p$ #w=' dbname=d", survey))
        read = load_settings(root / "headwater.toml", environ={})
        declared = load(root / "views.py", root)
        secret = (root / ".env").stat().st_mode & 0o777

    source = Project(read, declared).source
    dsn = read.for_source(source.name).dsn
    assert dsn is not None
    assert "host=h user=u password='p$ #w=' dbname=d" == dsn.get_secret_value()
    assert 0o600 == secret
    assert tuple(sorted(mirrored)) == tuple(sorted(source.tables))
    assert source.insert_only == {c.table for c in survey.mirrored if c.insert_only}
    views = declared.views.values()
    assert {c.table: set(c.to) for c in survey.mirrored} == {v.table: set(v.to) for v in views}
    CaptureSpec(source.name, "", (mirrored[0],), connect_url="", kafka_bootstrap="")


@given(tables=TABLES)
def test_the_names_of_views_are_different_and_short_enough(tables: list[TableName]) -> None:
    names = view_names(tables)

    assert list(tables) == list(names)
    assert len(set(names.values())) == len(tables)
    assert all(len(name) <= VIEW_LENGTH_MAX for name in names.values())


@given(text=st.text())
def test_a_literal_is_the_text_on_one_line(text: str) -> None:
    written = literal(text)

    assert text == eval(written)  # noqa: S307  # what Python reads of it is the question
    assert written.isprintable()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", "orders"),
        ("Order Lines", "order_lines"),
        ("OrderLines", "order_lines"),
        ("__EFMigrationsHistory", "ef_migrations_history"),
        ("HTTPServer2", "http_server2"),
        ("заказ", "zakaz"),
        ("Ёлка и щука", "elka_i_shchuka"),
        ("Größe", "grosse"),
        ("订单", "table"),
        ("2fa", "table_2fa"),
        ("x" * 70, "x" * 63),
    ],
)
def test_the_name_of_a_view_is_like_that_of_its_table(name: str, expected: str) -> None:
    assert expected == identifier(name, VIEW_LENGTH_MAX, "table")


def test_a_table_whose_name_is_a_views_gets_it_whatever_comes_before() -> None:
    tables = [TableName("public", name) for name in ("Order Lines", "OrderLines", "order_lines")]

    assert ["public_order_lines", "order_lines_2", "order_lines"] == list(
        view_names(tables).values()
    )


def test_a_word_of_sql_is_no_name_of_a_view() -> None:
    tables = [TableName("public", name) for name in ("Order", "User", "orders", "public_user")]

    names = list(view_names(tables).values())

    assert ["public_order", "user_2", "orders", "public_user"] == names
    assert set(names) <= relations("SELECT 1 FROM " + ", ".join(names))  # noqa: S608  # names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shop", "shop"),
        ("class", "class_db"),
        ("view", "view_db"),
        ("print", "print_db"),
        ("match", "match_db"),
        ("topic", "topic"),
        ("expect", "expect_db"),
    ],
)
def test_the_variable_of_a_source_hides_nothing(name: str, expected: str) -> None:
    assert expected == variable(name)


def test_a_short_project_reads_as_a_person_would_write_it() -> None:
    tables = [TableName("public", name) for name in ("customers", "events", "visits", "logs")]
    survey = chosen("shop", tables, [tuple(Store), tuple(Store), (), (Store.TABLE,)])

    assert WRITTEN == views_text(survey)


def test_many_tables_are_written_once_each_in_groups() -> None:
    tables = [
        TableName(schema, f"{word}_{number}")
        for schema in ("public", "stock")
        for word in ("account", "res", "sale")
        for number in range(70)
    ]
    text = views_text(chosen("erp", [*tables, TableName("public", "events")], [], noted=False))

    assert len(text.splitlines()) < len(tables) + 40
    assert 1 == text.count('"public.res_7"')
    assert ["    # public: account", "    # public: res", "    # public: sale"] == [
        line
        for line in text.splitlines()
        if line.startswith("    # public") and "others" not in line
    ]
    assert all(len(line) <= 100 for line in text.splitlines())
