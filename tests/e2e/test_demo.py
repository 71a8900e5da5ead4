"""The demo as a person runs it, and the proof that its comparison can fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from headwater.cli import main
from headwater.demo.result import STORES
from projections.publishing.published_versions import Published
from tests.fix_demo import HISTORIES, VIEWS

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
SHORT = ("--seconds", "10", "--scale", "0.2")


def demo(home: Path, *words: str, timeout_s: float = 1080) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headwater", "demo", "--home", str(home), "--json", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def test_the_demo_ends_with_every_view_equal_to_its_source(demo_home, tmp_path, capsys):
    screen = tmp_path / "screen.svg"

    done = demo(demo_home, *SHORT, "--save-screen", str(screen))

    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["verified"] is True
    assert {(v["view"], v["store"]) for v in found["views"]} == {
        *((view, store) for view in VIEWS for store in STORES),
        *((view, "table") for view in HISTORIES),
    }
    assert all(v["missing"] == v["extra"] == v["different"] == 0 for v in found["views"])
    assert all(v["rows"] > 0 for v in found["views"])
    assert [i["holds"] for i in found["invariants"]] == [True]
    assert found["changes"] > 500
    assert set(found["freshness"]) == set(STORES)
    assert all(store["samples"] > 20 for store in found["freshness"].values())
    assert found["memory_mib"] > 500
    assert screen.read_text().startswith("<svg")
    compare_two_times(demo_home, capsys)


def compare_two_times(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a view gained and lost between two of its versions is how its rows have grown."""

    def said(*words: str) -> Any:
        assert main([*words, "--home", str(home), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    compared = ("orders", "customers", "order_events", "orders_history", "sales_by_status")
    versions = Published(home / "tables", "shop").all()
    assert len(said("view", "versions")) == len(versions)
    # of the first boundaries tables may be missing that are still being read
    whole = [str(each.number) for each in versions if each.views.keys() >= {*compared}]
    first, last = whole[0], whole[-1]
    for view in compared:
        counts = [
            said("query", f"SELECT count(*) AS n FROM {view}", "--as-of", at)[0]["n"]  # noqa: S608
            for at in (first, last)
        ]
        found = said("view", "diff", view, first, last)
        assert counts[1] - counts[0] == found["appeared"] - found["gone"]
        back = said("view", "diff", view, last, first)
        assert (found["appeared"], found["gone"]) == (back["gone"], back["appeared"])
        assert (found["changed"], found["by_column"]) == (back["changed"], back["by_column"])
    assert said("view", "diff", "orders", last)["changed"] == 0
    assert said("view", "diff", "sales_by_status", first)["by_column"]["orders"] > 0
    assert main(["view", "diff", "nothing", first, "--home", str(home)]) == 2
    assert main(["view", "diff", "orders", "0/1", "--home", str(home)]) == 2


def test_ctrl_c_stops_everything_and_exits_130(demo_home):
    command = [sys.executable, "-m", "headwater", "demo", "--home", str(demo_home)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as child:
        wait_for_line(child, "loaded")
        child.send_signal(signal.SIGINT)
        code = child.wait(90)

    assert code == 130


def wait_for_line(child: subprocess.Popen[str], word: str) -> None:
    deadline = time.monotonic() + 120
    seen = []
    for line in child.stderr:
        seen.append(line)
        if word in line:
            return
        assert time.monotonic() < deadline
    raise AssertionError("".join(seen))
