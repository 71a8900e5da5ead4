"""The file `.env`: read as other tools write it, written so that it reads back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.project.settings import dotenv
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from pathlib import Path

DSN = "postgresql://me:pa#ss@db/shop?sslmode=require&application_name=a"


@pytest.mark.parametrize(
    "text",
    [
        f"SHOP_DSN={DSN}\n",
        f'SHOP_DSN="{DSN}"\n',
        f"SHOP_DSN='{DSN}'",
        f"# secrets\n\nexport SHOP_DSN={DSN}  # of the shop\n",
        f"  SHOP_DSN = {DSN}\r\n",
    ],
    ids=["plain", "double quotes", "single quotes", "export and comments", "spaces"],
)
def test_a_variable_is_read_in_every_usual_form(text: str, tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(text, encoding="utf-8", newline="")

    assert {"SHOP_DSN": DSN} == dotenv.read(file)


def test_without_the_file_there_are_no_variables(tmp_path: Path) -> None:
    assert {} == dotenv.read(tmp_path / ".env")


def test_a_value_that_needs_no_quotes_has_none() -> None:
    assert f"SHOP_DSN={DSN}\n" == dotenv.line("SHOP_DSN", DSN)


@given(value=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40))
@example(value="host=db password='a #b\\'")
@example(value="'quoted'")
@example(value=" padded ")
@example(value="$HOME and ${HOME}")
@settings(max_examples=examples(200))
def test_what_is_written_reads_back(value: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("env") / ".env"
    file.write_text("FIRST=1\n" + dotenv.line("SHOP_DSN", value) + "LAST=2\n", encoding="utf-8")

    assert {"FIRST": "1", "SHOP_DSN": value, "LAST": "2"} == dotenv.read(file)
