from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import TokenMalformedError
from cdc.lsn import Lsn
from cdc.position_token import PositionToken
from eventstore.model.token import Token

SOURCES = st.from_regex(r"[a-z][a-z0-9_]{0,62}", fullmatch=True)


@given(SOURCES, st.integers(0, 10**9 - 1), st.integers(0, 2**64 - 1))
def test_a_token_is_read_as_it_was_written(source: str, epoch: int, position: int) -> None:
    token = PositionToken(source, epoch, Lsn(position))

    assert token == PositionToken.parse(str(token))
    assert str(token).isascii()
    assert str(token).isprintable()
    assert " " not in str(token)


@given(st.text(max_size=80))
def test_any_other_text_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(TokenMalformedError) as refused:
        PositionToken.parse(text)

    assert "HW-C081" == refused.value.code
    assert refused.value.hint == "headwater token prints one"


@pytest.mark.parametrize(
    "text",
    [
        "",
        str(Token(4, 812)),  # the event store's own
        "hwp1.1.16B374D848.shop",
        "hwp1.1.0000000016b374d8.shop",
        "hwp1.1.0000000016B374D8.",
        "hwp1.-1.0000000016B374D8.shop",
        "hwp1.1.0000000016B374D8.shop\n",
        "hwp1.1.0000000016B374D8.shop extra",
        "hwp2.1.0000000016B374D8.shop",
    ],
)
def test_what_is_nearly_a_token_is_none(text: str) -> None:
    with pytest.raises(TokenMalformedError):
        PositionToken.parse(text)
