"""The demo wipes only what a demo made."""

from __future__ import annotations

import pytest

from headwater.demo.errors import DemoHomeError
from headwater.demo.home import MARKER, is_own, recreate_folder


def test_a_new_home_is_marked_as_the_demos_own(tmp_path):
    home = tmp_path / "deep" / ".headwater"

    recreate_folder(home, "globalshop")

    assert is_own(home)


def test_a_home_of_an_earlier_demo_is_emptied(tmp_path):
    home = tmp_path / ".headwater"
    recreate_folder(home, "globalshop")
    (home / "tables" / "orders").mkdir(parents=True)
    (home / "file").write_text("old")

    recreate_folder(home, "pgbench")

    assert [MARKER] == [entry.name for entry in home.iterdir()]


def test_a_folder_that_no_demo_made_is_refused_and_left_alone(tmp_path):
    home = tmp_path / ".headwater"
    home.mkdir()
    (home / "precious").write_text("data")

    with pytest.raises(DemoHomeError) as caught:
        recreate_folder(home, "globalshop")

    assert caught.value.exit_code == 2
    assert (home / "precious").read_text() == "data"


def test_a_file_in_place_of_the_home_is_refused(tmp_path):
    home = tmp_path / ".headwater"
    home.write_text("a file")

    with pytest.raises(DemoHomeError):
        recreate_folder(home, "globalshop")
