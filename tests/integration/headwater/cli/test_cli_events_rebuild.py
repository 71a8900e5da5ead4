"""`headwater events rebuild`: a view that the project declares, made anew."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import psycopg
import pytest

from eventstore.subscription.control import Subscriptions
from headwater.cli import main

pytestmark = pytest.mark.integration

VIEW = """
from eventstore import Query, event

@event("{name}.placed")
class Placed:
    pass

class Counts:
    name = "counts"
    query = Query()
    tables = ("counts",)

    {kind}def apply(self, recorded, connection):
        {wait}connection.execute(
            "INSERT INTO counts AS c VALUES (%s, 1) ON CONFLICT (stream)"
            " DO UPDATE SET events = c.events + 1", [recorded.stream])

counts = Counts()
"""


@pytest.mark.parametrize("kind", ["", "async "])
def test_a_declared_view_is_made_anew(store_dsn, tmp_path: Path, monkeypatch, capsys, kind):
    name = f"view{secrets.token_hex(4)}"
    view = VIEW.format(name=name, kind=kind, wait="await " if kind else "")
    (tmp_path / f"{name}.py").write_text(view)
    (tmp_path / "headwater.toml").write_text(f'[eventstore]\nmodules = ["{name}"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*words: str) -> int:
        return main([*words, "--dsn", store_dsn])

    for stream in ("order-1", "order-1", "order-2"):
        assert 0 == run("events", "append", stream, f"{name}.placed", "{}")
    with psycopg.connect(store_dsn) as connection:
        connection.execute("CREATE TABLE counts (stream text PRIMARY KEY, events bigint)")
        connection.execute("INSERT INTO counts VALUES ('order-1', 7), ('order-3', 1)")
        connection.execute(
            "SELECT eventstore.declare_subscription('default', 'counts', 1, 0, false);"
            "UPDATE eventstore.subscriptions SET global_position = 3"
        )
    capsys.readouterr()
    codes = [
        run("events", "rebuild", "counts"),
        run("events", "rebuild", "others", "--yes"),
    ]
    capsys.readouterr()
    codes.append(run("events", "rebuild", "counts", "--yes", "--json"))
    shown = json.loads(capsys.readouterr().out)
    with psycopg.connect(store_dsn) as connection:
        rows = connection.execute("SELECT * FROM counts ORDER BY 1").fetchall()

    assert [2, 2, 0] == codes
    assert {"events": 3, "removed": 2, "added": 2} == shown
    assert [("order-1", 2), ("order-2", 1)] == rows
    with Subscriptions(store_dsn) as subscriptions:
        assert 3 == subscriptions.status("counts")[0].global_position
