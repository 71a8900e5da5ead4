"""The command line of the event store, run in the process of the test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from eventstore.serialization.registry import declared
from headwater.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def cli(
    store_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    """Runs one command line on the event store, in a folder of its own.

    What other tests have declared in this process is not what a command's process would know.
    """
    monkeypatch.chdir(tmp_path)
    for known in ("_by_name", "_by_class", "_upcasters"):
        monkeypatch.setattr(declared, known, {})

    def run_words(*words: str, dsn: str = store_dsn) -> tuple[int, str, str]:
        code = main([*words, "--dsn", dsn])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_words


@pytest.fixture
def cli_rows(cli: Callable) -> Callable[..., list[dict]]:
    def read(*words: str) -> list[dict]:
        code, out, err = cli(*words, "--json")
        assert (0, "") == (code, err)
        return json.loads(out)

    return read


def append(cli, *streams: str, type_: str = "order.placed", payload: str = "{}") -> None:
    for stream in streams:
        code, _, err = cli("events", "append", stream, type_, payload)
        assert (0, "") == (code, err)
