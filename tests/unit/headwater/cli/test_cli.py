from __future__ import annotations

import json
import math
from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import typer
from deltalake import write_deltalake

from cdc.lsn import Lsn
from headwater import runtime
from headwater.cli import main
from headwater.cli.output import counted, print_error, print_json
from headwater.cli.verification import VerificationReport, present
from headwater.errors import UnhealthyError, UsageError
from headwater.platform import platform
from headwater.platform.platform import Platform
from headwater.project import scaffold
from headwater.project.project import EXAMPLE, open_project
from projections.common.fault import Fault
from projections.definition.views import Store
from projections.errors import DuplicateKeyError
from projections.publishing.published_versions import Published
from projections.verification.report import Uncompared, ViewReport

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VIEWS = """
from headwater import source, view
shop = source("shop", tables=["orders"])
view.mirror("orders", shop.orders, to=["table"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWATER_HOME", raising=False)
    return tmp_path


@pytest.fixture
def project(folder: Path) -> Path:
    (folder / "headwater.toml").write_text('[project]\nname = "shop"\n')
    (folder / "views.py").write_text(VIEWS)
    write_deltalake(str(folder / ".headwater/tables/orders"), pa.table({"id": [2, 1]}))
    return folder


Run = object


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run_words(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_words


def test_a_query_answers_in_a_table_for_people_and_in_one_document_for_programs(
    project: Path, run: Run
) -> None:
    sql = "SELECT id FROM orders ORDER BY id"

    shown = run("query", sql)
    told = run("query", sql, "--json")

    assert (0, [{"id": 1}, {"id": 2}]) == (told[0], json.loads(told[1]))
    assert (0, ["id", "1", "2"]) == (shown[0], shown[1].split())


def test_an_error_is_code_message_and_repair_on_stderr(folder: Path, run: Run) -> None:
    code, out, err = run("query", "SELECT 1")

    assert (2, "") == (code, out)
    assert "HW-S001" in err
    assert "headwater init" in err


def test_an_error_is_one_json_document_for_programs(project: Path, run: Run) -> None:
    code, out, _ = run("query", "DELETE FROM orders", "--json")

    error = json.loads(out)["error"]
    assert (2, "HW-Q002", False) == (code, error["code"], error["retriable"])


@pytest.mark.parametrize("as_json", [False, True])
def test_an_example_is_shown_to_whoever_asked(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    error = DuplicateKeyError("a key has two rows", hint="add columns", example=("7", "[red]"))

    print_error(error, as_json=as_json)

    shown = capsys.readouterr()
    if as_json:
        assert ["7", "[red]"] == json.loads(shown.out)["error"]["example"]
    else:
        assert "7, [red]" in shown.err


def test_an_answer_for_programs_has_only_numbers_that_json_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json([{"reading": math.nan, "readings": [math.inf, 1.5]}])

    assert [{"reading": "NaN", "readings": ["Infinity", 1.5]}] == json.loads(
        capsys.readouterr().out
    )


def test_a_verification_shows_examples_of_what_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = "lookup customer:[red]:orders (row 7 missing)"
    found = VerificationReport(
        [
            ViewReport("orders", Store.CACHE, 3, 1, 0, 0, Lsn(1), (wrong,)),
            ViewReport("orders", Store.TABLE, 3, 0, 0, 0, Lsn(1)),
        ]
    )

    with pytest.raises(UnhealthyError, match="views differ"):
        present(found, as_json=False)
    shown = capsys.readouterr().err
    with pytest.raises(typer.Exit) as ended:
        present(found, as_json=True)
    told = capsys.readouterr().out

    assert 3 == ended.value.exit_code
    assert ["orders in cache, such as", f"  {wrong}"] == shown.splitlines()
    assert [[wrong], []] == [report["examples"] for report in json.loads(told)]


def test_a_store_in_which_nothing_was_compared_is_told_with_what_starts_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    down = Fault(
        "HW-P011", "the cache cannot be written", "ConnectionError", "start it", retriable=True
    )
    compared = ViewReport("orders", Store.TABLE, 3, 0, 0, 0, Lsn(1))
    found = VerificationReport([compared], [Uncompared("orders", Store.CACHE, down)])

    with pytest.raises(UnhealthyError) as refused:
        present(found, as_json=False)
    shown = capsys.readouterr()
    with pytest.raises(typer.Exit) as ended:
        present(found, as_json=True)
    told = json.loads(capsys.readouterr().out)

    assert 3 == ended.value.exit_code
    assert ("orders in cache", "start it") == (refused.value.detail, refused.value.hint)
    assert "orders  table" in shown.out
    assert shown.err.splitlines() == [
        "orders in cache is not compared: HW-P011 the cache cannot be written: ConnectionError"
    ]
    assert [("table", None), ("cache", asdict(down))] == [
        (report["store"], report["fault"]) for report in told
    ]


def test_views_that_stand_still_make_a_verification_unhealthy_though_the_others_are_equal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    still = Fault("HW-P051", "view orders is paused", "column a", "resume it", retriable=False)
    equal = ViewReport("items", Store.TABLE, 3, 0, 0, 0, Lsn(1))

    with pytest.raises(typer.Exit) as ended:
        present(VerificationReport([equal], paused=[still]), as_json=False)

    assert 3 == ended.value.exit_code
    assert [
        "view orders is paused: column a",
        "  resume it",
    ] == capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("read", "seen"),
    [
        ([[("reading", 0)], [("done", 0), ("done", 0)]], [None, None]),  # nothing is to come
        ([[("done", 0), ("unread", 0)], [("done", 0), ("done", 1)]], [None, "a change"]),
    ],
)
def test_a_first_change_is_waited_for_as_long_as_there_is_a_row_to_come(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: list[list[tuple[str, int]]],
    seen: list[str | None],
) -> None:
    reports = iter([[SimpleNamespace(state=s, rows_read=n) for s, n in each] for each in read])
    found = iter(seen)
    monkeypatch.setattr(Platform, "reads", lambda _: next(reports))
    monkeypatch.setattr(Platform, "endpoints", SimpleNamespace(kafka_bootstrap=""))
    monkeypatch.setattr(platform, "first_change", lambda *_: next(found))

    first = Platform(open_project(), project / "headwater.toml").first_change(60)

    assert seen[-1] == first
    assert [] == list(reports)


def test_a_misspelt_command_or_option_is_a_usage_error(folder: Path, run: Run) -> None:
    assert 2 == run("qurey")[0]
    assert 2 == run("query", "SELECT 1", "--jsn")[0]
    assert 2 == run("demo", "--workload", "tpcc")[0]


def test_ctrl_c_exits_130(project: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "status", interrupted)

    assert 130 == run("status")[0]


def test_status_before_any_start_is_unhealthy_and_changes_nothing(project: Path, run: Run) -> None:
    before = sorted(project.rglob("*"))

    code, out, _ = run("status", "--json")

    assert (3, False) == (code, json.loads(out)["running"])
    assert before == sorted(project.rglob("*"))


def test_down_where_nothing_runs_says_so(project: Path, run: Run) -> None:
    code, _, err = run("down")

    assert (0, "nothing was running") == (code, err.strip())


def test_logs_of_what_is_not_there_name_what_is(project: Path, run: Run) -> None:
    logs = project / ".headwater/log"
    logs.mkdir()
    (logs / "kafka.log").write_text("one\ntwo\nthree\n")

    tail = run("logs", "kafka", "-n", "2")
    missing = run("logs", "kafak")
    outside = run("logs", "../../views")

    assert (0, "two\nthree\n") == tail[:2]
    assert (2, True) == (missing[0], "kafka" in missing[2])
    assert 2 == outside[0]


def test_what_is_declared_is_listed(project: Path, run: Run) -> None:
    views = json.loads(run("view", "list", "--json")[1])
    tables = json.loads(run("source", "list", "--json")[1])

    assert [{"view": "orders", "table": "public.orders", "stores": "table"}] == views
    assert "shop.public.orders" == tables[0]["topic"]


def test_settings_for_a_source_that_is_not_declared_are_refused(project: Path, run: Run) -> None:
    (project / "headwater.toml").write_text("[source.shoop]\nepoch = 2\n")
    code, _, error = run("view", "list")

    assert (2, True, True) == (code, "shoop" in error, "shop" in error)


def test_the_example_opens(folder: Path, run: Run) -> None:
    code, out, _ = run("view", "list", "--config", str(EXAMPLE), "--json")

    assert 0 == code
    assert {"customers", "orders", "payments"} <= {view["view"] for view in json.loads(out)}


def test_doctor_needs_no_project_and_finds_a_taken_port(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    alone = run("doctor", "--json")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (folder / "headwater.toml").write_text(f"[services.kafka]\nport = {port}\n")
        (folder / "views.py").write_text(VIEWS)
        taken = run("doctor", "--json")
    monkeypatch.setenv("JAVA_HOME", str(folder))
    monkeypatch.setenv("PATH", str(folder))
    no_java = run("doctor")

    names = {check["name"]: check["state"] for check in json.loads(alone[1])}
    assert {"java", "memory", "disk", "jars for kafka"} <= names.keys()
    assert (0, "ok") == (alone[0], names["java"])
    found = {check["name"]: check for check in json.loads(taken[1])}[f"port {port}"]
    assert (3, "fail") == (taken[0], found["state"])
    assert "services.kafka.port" in found["hint"]
    assert (4, True) == (no_java[0], "apt-get install openjdk" in no_java[1])


def test_init_never_overwrites(folder: Path) -> None:
    (folder / "views.py").write_text("mine\n")

    with pytest.raises(UsageError):
        scaffold.create(folder, "postgresql://u@h/d", "shop")

    assert "mine\n" == (folder / "views.py").read_text()


def test_init_with_a_wrong_address_writes_nothing(folder: Path, run: Run) -> None:
    code, _, err = run("init", "shop", "--dsn", "postgresql://u:hunter2@no-such-host.invalid/d")

    assert (1, True, False) == (code, "HW-C010" in err, "hunter2" in err)
    assert not (folder / "shop").exists()


def test_the_state_of_views_is_told_without_any_server(project: Path, run: Run) -> None:
    tables = project / ".headwater/tables"
    empty = run("view", "state")
    Published(tables, "shop").publish(1, 100, {"orders": 0})

    shown, told = run("view", "state"), run("view", "state", "--json")

    assert (0, "") == empty[:2]
    assert "nothing is published yet" in empty[2]
    assert (0, 0) == (shown[0], told[0])
    (row,) = json.loads(told[1])
    assert ("orders", "latest of each key", 2) == (row["view"], row["way"], row["kept"]["rows"])
    assert ["orders", "2", "1"] == shown[1].splitlines()[1].split()[:3]


def test_a_table_that_is_not_there_any_more_is_told(project: Path, run: Run) -> None:
    Published(project / ".headwater/tables", "shop").publish(1, 100, {"orders": 7})

    code, out, err = run("view", "state")

    assert (1, "") == (code, out)
    assert "version 7" in err


def test_one_thing_is_counted_in_the_singular() -> None:
    assert ["0 rows", "1 row", "1,200 rows"] == [counted(count, "row") for count in (0, 1, 1200)]
