"""Master keys: what they wrap, and the files that they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventstore.errors import SubjectKeyError
from eventstore.privacy.keyring import SubjectKey
from eventstore.privacy.master_key import (
    MasterKeys,
    master_key_line,
    new_master_keys,
    read_master_keys,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_keys_do_not_show_themselves(tmp_path):
    keys = new_master_keys("k1")
    secret = keys.keys["k1"]
    shown = f"{keys!r} {keys} {SubjectKey(secret, 1)!r} {SubjectKey(secret, 1)}"

    assert repr(secret)[2:-1] not in shown
    assert "hidden" in shown


def test_master_keys_are_32_bytes_under_names():
    for current, keys in (
        ("a", {}),
        ("a", {"b": bytes(32)}),
        ("a", {"a": bytes(31)}),
        ("a", {"a": "x" * 32}),
        ("", {"": bytes(32)}),
        ("a b", {"a b": bytes(32)}),
    ):
        with pytest.raises(SubjectKeyError):
            MasterKeys(current, keys)


def test_a_wrapped_key_opens_under_its_master_key_for_its_subject_only():
    old, new = new_master_keys("k1"), new_master_keys("k1")
    wrapped = old.wrap(b"s" * 32, b"ann")

    assert b"s" * 32 == old.unwrap(wrapped, "k1", b"ann")
    for keys, box, name, whose in (
        (old, wrapped, "k1", b"bob"),
        (new, wrapped, "k1", b"ann"),
        (old, wrapped, "k2", b"ann"),
        (old, wrapped[:-1], "k1", b"ann"),
        (old, b"", "k1", b"ann"),
    ):
        with pytest.raises(SubjectKeyError):
            keys.unwrap(box, name, whose)


def key_file(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "master.keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_file_has_the_current_key_first(tmp_path):
    new, old = new_master_keys("2026-02"), new_master_keys("2026-01")
    text = master_key_line(new, "2026-02") + "# before\n\n" + master_key_line(old, "2026-01")
    read = read_master_keys(key_file(tmp_path, text))

    assert "2026-02" == read.current
    assert {**new.keys, **old.keys} == dict(read.keys)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666], ids=oct)
def test_a_key_file_that_others_may_read_or_write_is_refused(tmp_path, mode):
    path = key_file(tmp_path, master_key_line(new_master_keys("k1"), "k1"), mode)

    with pytest.raises(SubjectKeyError, match="accessible to other users") as refused:
        read_master_keys(path)
    assert f"chmod 600 {path}" == refused.value.hint


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "k1\n", "k1 s3cret!\n", "k1 c2hvcnQ=\n", "é x\n", "{0}{0}"],
    ids=["empty", "comment", "no key", "no base64", "short", "not ascii", "twice"],
)
def test_a_key_file_that_is_none_is_refused_without_showing_it(tmp_path, text):
    line = master_key_line(new_master_keys("k1"), "k1")
    with pytest.raises(SubjectKeyError) as refused:
        read_master_keys(key_file(tmp_path, text.format(line)))

    said = f"{refused.value} {refused.value.detail}"
    assert "s3cret" not in said
    assert line.split()[1] not in said


def test_a_key_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SubjectKeyError, match="cannot be read"):
        read_master_keys(tmp_path / "none")
