"""What `headwater events` and `headwater db` refuse, choose and print, without a database."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from eventstore.errors import AuditError, UndeclaredError
from eventstore.memory import MemoryEventLog
from eventstore.model.event import StoredEvent
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventTypes
from eventstore.store import EventStore
from eventstore.upkeep.audit import SealedHead
from headwater.cli import main
from headwater.cli.events import _line
from headwater.errors import PlatformMissingError, UnhealthyError, UsageError
from headwater.operations.events import decider_of, event_of, keep_head, read_head, shown
from headwater.platform.database import Database, find_database
from headwater.project.settings import EventStoreSettings
from headwater.project.settings.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
STORED = StoredEvent(
    *(7, "default", "order-1", 1, "order.placed", 1, UUID(int=1), b'{"total":"9.90"}'),
    *(None, ["customer:c1"], None, None, None, NOW, NOW),
)
Run = object


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run_words(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWATER_HOME", raising=False)
    return tmp_path


def store(types: EventTypes | None = None) -> EventStore:
    return EventStore(MemoryEventLog(), types=types or EventTypes())


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", '{"a": NaN}', '{"a": Infinity}', '{"a": 1, "a": 2}', "[" * 100_000],
    ids=["empty", "cut", "list", "number", "nan", "infinity", "twice", "deep"],
)
def test_a_payload_that_is_no_json_object_is_refused(text):
    with pytest.raises(UsageError, match="payload"):
        event_of(store(), "order.placed", text)


def test_an_event_from_the_command_line_has_the_declared_version():
    types = EventTypes()
    types.untyped("order.placed", version=3)

    assert 3 == event_of(store(types), "order.placed", "{}").version
    assert 1 == event_of(store(types), "order.shipped", "{}").version


def test_personal_fields_are_not_printed_without_a_master_key():
    box = b'{"email":{"$sealed":"c2VjcmV0","subject":"c1","key":1},"lines":[{"$sealed":"eA=="}]}'
    row = shown(STORED._replace(data=box), Codec(EventTypes()))

    assert {"email": "[sealed]", "lines": ["[sealed]"]} == row["data"]
    assert "c2VjcmV0" not in json.dumps(row)


def test_an_event_that_its_declared_type_cannot_read_is_shown_as_stored_with_the_code():
    types = EventTypes()
    types.untyped("order.placed", version=1)
    row = shown(STORED._replace(schema_version=2), Codec(types))

    assert ({"total": "9.90"}, "HW-E020") == (row["data"], row["unreadable"])


def test_a_payload_does_not_steer_the_terminal():
    evil = '{"a":"\u009b31m\u202e\u2028\x7f"}'.encode()
    line = _line(shown(STORED._replace(data=evil), Codec(EventTypes())))

    assert line.isprintable()
    assert r"\u009b31m\u202e\u2028\u007f" in line


@pytest.mark.parametrize(
    "words",
    [
        ("events", "append", "order-1", "order.placed", "--expected-version", "-3"),
        ("events", "append", "order-1", "order.placed", "--expected-version", "two"),
        ("events", "append", "order-1", "order.placed", "--expected-version", "9" * 20),
        ("events", "stream", "order-1", "--as-of", "2026-01-31T12:00:00"),
        ("events", "stream", "order-1", "--as-of", "yesterday"),
        ("events", "stream", "$all"),
        ("events", "tail", "--type", "not a type"),
        ("events", "tail", "--category", "a-b"),
        ("events", "shred", "c1"),
        ("events", "upcast"),
        ("events", "parked", "drop", "mail", "order-1"),
        ("db", "downgrade"),
        ("db", "grant", "app", "--tenant", "a/b"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_exits_2_before_anything_is_done(folder, run, words):
    code, out, err = run(*words, "--dsn", "postgresql://nobody:canary@127.0.0.1:1/none")

    assert (2, "") == (code, out)
    assert "repair" in err or "seen" in err
    assert "canary" not in err


def test_a_database_that_does_not_answer_is_one_error_without_the_password(folder, run):
    dsn = "postgresql://nobody:canary@127.0.0.1:1/none"
    for words in (("db", "current"), ("db", "upgrade"), ("events", "status"), ("events", "tail")):
        code, out, err = run(*words, "--json", "--dsn", dsn)

        assert (1, "HW-E050") == (code, json.loads(out)["error"]["code"])
        assert "canary" not in out + err


def test_without_a_dsn_and_settings_the_option_is_named(folder, run):
    code, _, err = run("db", "current")

    assert 2 == code
    assert "--dsn postgresql://" in err


def settings(folder: Path, text: str) -> Path:
    (folder / "headwater.toml").write_text(text)
    (folder / "views.py").write_text(
        "from headwater import source, view\n"
        'shop = source("shop", tables=["orders"])\nview.mirror("orders", shop.orders)\n'
    )
    return folder / "headwater.toml"


@pytest.mark.parametrize(
    ("text", "option", "expected"),
    [
        ("", "postgresql://option/x", "postgresql://option/x"),
        ("[eventstore]\ndsn = 'postgresql://own/x'\n", None, "postgresql://own/x"),
        ("[source.shop]\ndsn = 'postgresql://source/x'\n", None, "postgresql://source/x"),
        (
            "[eventstore]\ndsn = 'postgresql://own/x'\n[source.shop]\ndsn = 'postgresql://s/x'\n",
            None,
            "postgresql://own/x",
        ),
    ],
    ids=["option", "eventstore", "source", "eventstore before source"],
)
def test_the_database_is_the_option_s_or_the_settings_or_the_source(folder, text, option, expected):
    settings(folder, text)

    assert expected == find_database(option).dsn


def test_a_local_postgres_that_does_not_run_is_not_started(folder):
    settings(folder, "")

    with pytest.raises(UnhealthyError) as caught:
        find_database()
    assert "headwater up" == caught.value.hint
    assert not (folder / ".headwater").exists()


def test_a_missing_settings_file_that_is_named_is_an_error_even_with_a_dsn(folder):
    with pytest.raises(SettingsError):
        find_database("postgresql://option/x", config=folder / "other.toml")


def test_a_database_hides_how_it_is_reached():
    assert "canary" not in repr(Database("postgresql://u:canary@h/x", EventStoreSettings(), None))


def database(folder: Path, *modules: str) -> Database:
    return Database("", EventStoreSettings(modules=modules), folder)


DECIDER = """
from dataclasses import dataclass
from eventstore.deciding.decider import Decider
class Place: pass
def decide(command, state): return ()
def evolve(state, event): return state
def initial_state() -> int: return 0
orders = Decider(
    category="order", decide=decide, evolve=evolve, initial_state=initial_state,
    commands=(Place,), stream_id=lambda c: "1",
)
same = orders
"""


def test_a_decider_is_found_by_its_category_in_the_modules_of_the_settings(folder):
    (folder / "clie_orders.py").write_text(DECIDER)

    assert "order" == decider_of(database(folder, "clie_orders"), "order").category
    with pytest.raises(UndeclaredError, match="no deciders"):
        decider_of(database(folder, "clie_orders"), "basket")


@pytest.mark.parametrize(
    ("name", "text", "error", "detail"),
    [
        ("clie_absent", None, UsageError, "module clie_absent does not exist"),
        ("clie_needs", "import clie_gone", UsageError, "module clie_gone does not exist"),
        ("clie_broken", "raise ValueError('canary')", UsageError, "ValueError"),
        ("clie_spark", "raise ModuleNotFoundError(name='pyspark')", ModuleNotFoundError, ""),
    ],
    ids=["absent", "needs", "broken", "platform"],
)
def test_a_module_of_the_settings_that_cannot_be_imported_is_named(
    folder, name, text, error, detail
):
    if text is not None:
        (folder / f"{name}.py").write_text(text)

    with pytest.raises(error) as caught:
        decider_of(database(folder, name), "order")
    assert detail in (getattr(caught.value, "detail", None) or "")
    assert "canary" not in str(caught.value)


HEAD = SealedHead(3, 300, 250, b"d" * 32, 1, b"c" * 32)


def test_a_head_is_kept_and_goes_on(tmp_path):
    path = tmp_path / "head"
    later = replace(HEAD, block=4, position=400, event_total=300, digest=b"e" * 32)
    keep_head(path, HEAD)
    keep_head(path, HEAD)
    keep_head(path, later)

    assert later == read_head(path)


@pytest.mark.parametrize(
    "now",
    [
        replace(HEAD, block=2, position=200, event_total=150),
        replace(HEAD, digest=b"x" * 32),
        replace(HEAD, compactions=0),
    ],
    ids=["cut", "rewritten", "compactions cut"],
)
def test_a_head_that_contradicts_the_kept_one_does_not_take_its_place(tmp_path, now):
    path = tmp_path / "head"
    keep_head(path, HEAD)

    with pytest.raises(AuditError, match="does not continue"):
        keep_head(path, now)
    assert HEAD == read_head(path)


def test_a_head_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_head(tmp_path / "none")


def test_the_platform_says_at_once_that_its_extra_is_missing(folder, monkeypatch):
    monkeypatch.setattr("headwater.project.optional.find_spec", lambda _: None)
    settings(folder, "")

    with pytest.raises(PlatformMissingError, match="only the event store is installed"):
        find_database()
