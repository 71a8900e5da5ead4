"""A person is forgotten by the command: what only they had is looked for everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eventstore.log import StateSnapshot
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.postgres.log import PostgresEventLog
from eventstore.privacy.master_key import master_key_line, new_master_keys
from eventstore.privacy.personal import Personal  # noqa: TC001  # read when the class is made
from eventstore.serialization.registry import EventData, EventTypes
from eventstore.store import EventStore
from headwater.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.integration

SECRET = "ada@shredded.example"
SHARED = "everyone@shared.example"
NOTE = "lives beside the old mill"

types = EventTypes()
types.untyped("mail.sent")


@types.event("person.met", subject="who")
class Met:
    who: str
    email: Personal[str]
    notes: Personal[list[str]]


@pytest.fixture
def run(
    store_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Run:
    monkeypatch.chdir(tmp_path)

    def run_words(*words: str, subject: str = "ada") -> tuple[int, str, str]:
        code = main(["events", "shred", subject, "--yes", *words, "--dsn", store_dsn])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_words


@pytest.fixture
def written(store_dsn: str, tmp_path: Path) -> Callable[..., None]:
    """Appends what is known of two persons, under a master key that the settings name."""
    keys = new_master_keys("k1")
    path = tmp_path / "master.key"
    path.touch(mode=0o600)
    path.write_text(master_key_line(keys, "k1"))

    def write(*, leak: bool = False) -> None:
        ring = PostgresKeyRing(store_dsn, keys)
        log = PostgresEventLog(store_dsn)
        with EventStore(log, types=types, keyring=ring) as store:
            store.append("person-ada", Met("ada", SECRET, [NOTE, "short"]))
            store.append("person-ada", Met("ada", SHARED, []))
            store.append("person-bob", Met("bob", f"see {SHARED}", []))
            if leak:
                store.append("mail-1", EventData("mail.sent", {"to": [SECRET]}))
            saved = StateSnapshot("person-ada", "f", 2, b"{}", bytes(32), ("ada",))
            log.save_snapshot("default", saved)
        ring.close()

    return write


def settings(tmp_path: Path) -> None:
    (tmp_path / "headwater.toml").write_text('[eventstore]\nmaster_key_file = "master.key"\n')


def test_what_only_a_forgotten_person_had_is_looked_for_in_the_log_and_in_all_files(
    run: Run, written: Callable[..., None], tmp_path: Path
) -> None:
    settings(tmp_path)
    written(leak=True)
    home = tmp_path / ".headwater"
    home.mkdir()
    (home / "everyone.txt").write_text(SHARED)
    (home / "notes.txt").write_text(f"she {NOTE}")
    table = pa.table({"email": pa.array([SECRET]).dictionary_encode()})
    pq.write_table(table, home / "kept.parquet", compression="zstd")

    code, out, err = run("--json")

    said = json.loads(out)
    assert (3, True, False) == (code, said["had_key"], said["complete"])
    # what others have, too, is not looked for
    assert 2 == said["values_searched"]
    events = [name for name in said["found_in"] if name.startswith("event ")]
    assert [*["kept.parquet", "notes.txt"], *events] == said["found_in"]
    assert 1 == len(events)
    assert {
        ("key ring", 1),
        ("key ring", 0),
        ("events", 4),
        ("saved states", 1),
    } == {(each["place"], each["count"]) for each in said["erased"]}
    assert any("log of events" in place for place in said["searched_in"])
    kept = Path(said["certificate"]).read_text()
    for value in (SECRET, SHARED, NOTE):
        assert value not in kept + out + err

    # asked again, nothing is known that could be looked for, and it says so
    code, out, err = run()
    assert (0, "there was no key; none will be made\n") == (code, out)
    assert "none was looked for" in err.replace("\n", " ")


def test_where_a_person_has_left_nothing_the_certificate_says_so(
    run: Run, written: Callable[..., None], tmp_path: Path
) -> None:
    settings(tmp_path)
    written()

    code, out, err = run()

    assert (0, "the key is destroyed\n") == (code, out)
    assert "2 texts: found in 0 places" in err
    folder = tmp_path / ".headwater" / "certificates"
    (certificate,) = folder.iterdir()
    assert 0o600 == certificate.stat().st_mode & 0o777

    # a person is named by any text, and the key is gone before the certificate is written
    for subject in ("../../ada/of the mill", "ä" * 100):
        assert 0 == run(subject=subject)[0]
    assert 3 == len(list(folder.iterdir()))


def test_with_nothing_but_a_database_a_certificate_says_what_was_not_searched(
    run: Run, written: Callable[..., None], tmp_path: Path, store_dsn: str
) -> None:
    written()
    code, out, _ = run("--json", "--home", str(tmp_path / "mine"))

    said: dict[str, Any] = json.loads(out)
    assert (0, True) == (code, said["had_key"])
    assert (0, 0) == (said["values_searched"], said["files_searched"])
    assert [] == said["searched_in"]
    assert any("no master key" in what for what in said["beyond_reach"])
    # how many fields were sealed is known without opening one
    assert 4 == next(each["count"] for each in said["erased"] if each["place"] == "events")
    assert Path(said["certificate"]).is_relative_to(tmp_path / "mine")
    with psycopg.connect(store_dsn) as connection:
        (left,) = connection.execute("SELECT count(*) FROM eventstore.snapshots").fetchone()
    assert 0 == left


def test_the_event_store_alone_forgets_a_person_and_says_so(
    installed: Any, database: str, tmp_path: Path
) -> None:
    """Base dependencies only: there is nothing that decodes a Parquet file."""
    home = tmp_path / ".headwater"
    home.mkdir()
    (home / "kept.parquet").write_bytes(b"PAR1")
    (home / "texts").write_text(f"{SECRET}\n")
    words = ("events", "shred", "ada", "--yes", "--search", str(home / "texts"))
    upgraded, shredded = (
        installed.headwater(*each, "--dsn", database, cwd=tmp_path)
        for each in (("db", "upgrade"), words)
    )

    assert (0, 3) == (upgraded.returncode, shredded.returncode), shredded.stderr
    assert "there was no key; none will be made\n" == shredded.stdout
    (path,) = (home / "certificates").iterdir()
    said = json.loads(path.read_text())
    assert ["texts"] == said["found_in"]
    assert any("1 Parquet files" in what for what in said["beyond_reach"])
