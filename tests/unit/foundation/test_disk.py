"""Free space of a disk, asked of a folder that may not be there."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from foundation.disk import free_bytes


@pytest.mark.parametrize("below", ["", "home", "home/tables"])
def test_a_folder_that_is_missing_has_the_free_space_of_the_nearest_folder_above_it(
    tmp_path, monkeypatch, below
):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: SimpleNamespace(free={tmp_path: 7}[folder])
    )

    assert 7 == free_bytes(tmp_path / below)


def test_a_relative_folder_that_is_missing_has_the_free_space_of_the_current_one(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    assert free_bytes(Path("home")) > 0
