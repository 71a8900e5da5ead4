"""An error in a module of views comes with its line, and with the name that was meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from foundation.errors import PlatformError
from projections.definition.registry import load
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = """from headwater import *
shop = source("shop", tables=["public.orders", "public.events", "a.twice", "b.twice"])
"""


def refused(tmp_path: Path, text: str) -> DeclarationError:
    module = tmp_path / "views.py"
    module.write_text(BEFORE + text)
    with pytest.raises(DeclarationError) as error:
        load(module)
    return error.value


@pytest.mark.parametrize(
    ("text", "detail", "hint"),
    [
        ("view.miror('a', shop.orders)", "AttributeError: ", "did you mean mirror?"),
        ("view.derived('a')", "AttributeError: ", "use one of Approximate, Percentile, Top, aggre"),
        ("view.mirror('a', shop.ordrs)", "AttributeError: ", "did you mean orders?"),
        ("soruce('a')", "NameError: ", "did you mean source?"),
        ("view.sql('a', 'SELECT 1', key=['b'])", "TypeError: ", "did you mean keys?"),
        ("view(kyes=['a'])", "TypeError: ", "did you mean keys?"),
        ("Hopping('at', sise='1 hour')", "TypeError: ", "use one of every, offset, time, width"),
        ("from headwater import Tumbing", "ImportError: ", "did you mean Tumbling?"),
        ("import not_installed", "ModuleNotFoundError: ", "correct the module at this line"),
        ("1 / 0", "ZeroDivisionError: ", "correct the module at this line"),
        ("view.mirror(", "SyntaxError: ", "correct the module at this line"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(
    tmp_path: Path, text: str, detail: str, hint: str
) -> None:
    error = refused(tmp_path, text)
    assert "views.py raised an error" == error.message
    assert (error.detail or "").startswith(f"line 3: {detail}")
    assert (error.hint or "").startswith(hint)


@pytest.mark.parametrize(
    ("text", "message", "detail"),
    [
        ("view.mirror('a', shop.orders, to=[])", "view a has no store", "line 3"),
        ("view.mirror('A', shop.orders)", "view name is invalid", "line 3: A"),
        ("view.mirror('a', shop.events)", "mirror a: table needs a table of a source", "line 3"),
        (
            "view.sql('a', 'SELECT 1', keys='id')",
            "sql a: keys needs a list of names",
            "line 3",
        ),
        ("ColumnRules(exclude='ssn')", "ColumnRules: exclude needs a list of names", "line 3"),
    ],
)
def test_a_declaration_that_is_refused_has_its_line(
    tmp_path: Path, text: str, message: str, detail: str
) -> None:
    module = tmp_path / "views.py"
    module.write_text(BEFORE + text)
    with pytest.raises(PlatformError) as error:
        load(module)
    assert message == error.value.message
    assert (error.value.detail or "").startswith(detail)
