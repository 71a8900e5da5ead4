"""A file is replaced whole, or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from foundation.atomic_file import replacing, write_atomically


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_whole_and_private(tmp_path, durable):
    path = tmp_path / "x.json"
    write_atomically(path, "1", mode=0o600, durable=durable)
    write_atomically(path, "2", mode=0o600, durable=durable)

    assert "2" == path.read_text()
    assert 0o600 == path.stat().st_mode & 0o777
    assert [path] == list(tmp_path.iterdir())


def test_without_a_mode_the_umask_decides(tmp_path):
    path, before = tmp_path / "x", os.umask(0o027)
    try:
        write_atomically(path, b"1")
    finally:
        os.umask(before)

    assert 0o640 == path.stat().st_mode & 0o777


def test_an_error_leaves_the_old_content_and_no_draft(tmp_path):
    path = tmp_path / "x"
    write_atomically(path, "old")

    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"ne", None])

    assert "old" == path.read_text()
    assert [path] == list(tmp_path.iterdir())


def test_many_writers_never_mix(tmp_path):
    path = tmp_path / "x"
    contents = [bytes([65 + number]) * 50_000 for number in range(8)]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: write_atomically(path, content, durable=False), contents * 5))

    assert path.read_bytes() in contents
    assert [path] == list(tmp_path.iterdir())
