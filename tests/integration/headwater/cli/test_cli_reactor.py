"""`headwater reactor` on a real database, with a reactor that a module of the project declares."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from eventstore.serialization.registry import declared
from headwater.cli import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

MODULE = """
from eventstore import event
from eventstore.model.query import Query
from eventstore.reactor import Invoke, Reactor

@event("parcel.packed", version=1)
class ParcelPacked:
    parcel: str

def label(key, parcel):
    raise AssertionError("a dry run makes no effect")

def react(recorded):
    return Invoke(label, recorded.event.parcel)

labels = Reactor(name="labels", react=react, query=Query(category="parcel"))
"""
PARKED = """
SELECT eventstore.declare_subscription('default', 'labels', 1, 0, false);
SELECT eventstore.declare_subscription('default', 'plain', 1, 0, false);
UPDATE eventstore.subscriptions SET reactor = true WHERE name = 'labels';
INSERT INTO eventstore.parked_events (tenant, subscription, stream, global_position,
                                      state, live, attempts, error_type, error_code)
VALUES ('default', 'labels', 'parcel-1', 1, 'parked', true, 3, 'x.EffectRefusedError', 'HW-E060'),
       ('default', 'labels', 'parcel-2', 2, 'parked', true, 3, 'x.EffectRefusedError', 'HW-E060')
"""


@pytest.fixture
def run(store_dsn: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for known in ("_by_name", "_by_class", "_upcasters"):
        monkeypatch.setattr(declared, known, {})

    def run_words(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--dsn", store_dsn])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_words


@pytest.fixture
def parked(store_dsn: str) -> None:
    with psycopg.connect(store_dsn, autocommit=True) as connection:
        connection.execute(PARKED)


def listed(run, *words: str) -> list[dict]:
    code, out, err = run("reactor", *words, "--json")
    assert (0, "") == (code, err)
    return json.loads(out)


def test_reactors_are_listed_paused_and_resumed(run, parked):
    before = listed(run, "list")
    said = run("reactor", "pause", "labels")
    paused = listed(run, "list")
    again = run("reactor", "pause", "labels")
    resumed = run("reactor", "resume", "labels")
    after = listed(run, "list")
    absent = run("reactor", "pause", "plain")

    assert [("labels", "stopped", 2)] == [
        (one["name"], one["state"], one["parked_streams"]) for one in before
    ]
    assert [0, 0, 0] == [code for code, _, _ in (said, again, resumed)]
    assert ["paused"] == [one["state"] for one in paused]
    assert before == after
    assert 2 == absent[0]
    assert "there is no reactor plain" in absent[2]


def test_what_failed_is_listed_retried_and_dropped(run, parked):
    before = listed(run, "parked")
    one = run("reactor", "retry", "labels", "parcel-1")
    several = run("reactor", "retry", "labels", "--error-type", "EffectRefusedError")
    dropped = run("reactor", "drop", "labels", "parcel-2", "--yes")
    refused = [
        run("reactor", "drop", "labels", "parcel-1"),
        run("reactor", "retry", "labels"),
        run("reactor", "retry", "labels", "parcel-1", "--all"),
        run("reactor", "retry", "labels", "parcel-9"),
    ]

    assert ["parcel-1", "parcel-2"] == [one["stream"] for one in before]
    assert {"labels"} == {one["reactor"] for one in before}
    assert (0, "its runner tries it again\n", "") == one
    assert (0, "its runner tries 2 again\n", "") == several
    assert (0, "1 event given up\n", "") == dropped
    assert [2, 2, 2, 3] == [code for code, _, _ in refused]
    assert [("parcel-1", "retrying")] == [
        (one["stream"], one["state"]) for one in listed(run, "parked", "labels")
    ]


def test_a_dry_run_lists_the_effects_of_a_part_of_the_log(
    run, tmp_path: Path, store_dsn, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "labels_of_parcels.py").write_text(MODULE)
    (tmp_path / "headwater.toml").write_text(
        f'[eventstore]\ndsn = "{store_dsn}"\nmodules = ["labels_of_parcels"]\n'
    )
    for number in ("1", "2"):
        words = ("events", "append", f"parcel-{number}", "parcel.packed")
        assert 0 == run(*words, f'{{"parcel": "{number}"}}')[0]

    every = listed(run, "dry-run", "labels")
    part = listed(run, "dry-run", "labels", "--after", "1", "--through", "2")
    limited = listed(run, "dry-run", "labels", "-n", "1")
    unknown = run("reactor", "dry-run", "mail")

    assert [("parcel-1", "invoke label"), ("parcel-2", "invoke label")] == [
        (one["stream"], one["effect"]) for one in every
    ]
    assert 2 == len({one["key"] for one in every})
    assert [every[1]] == part
    assert [every[0]] == limited
    assert "no reactors are declared as mail" in unknown[2]
    assert [] == listed(run, "list")
