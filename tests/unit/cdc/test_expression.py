"""Keys that are byte for byte the connector's."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from cdc.snapshot.expression import key_bytes

SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
TEXTS = st.text(
    st.characters(exclude_characters="\0", codec="utf-8")
    | st.sampled_from(["\x01", "\x0b", "\x1b", "\x1f", "\x7f", "\\", '"', "u", "0", "b", "😀", "é"])
)


def as_postgres(text: str) -> bytes:
    """A JSON text as Postgres writes it (escape_json)."""
    written = (SHORT.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in text)
    return f'{{"k":"{"".join(written)}"}}'.encode()


def as_jackson(text: str) -> bytes:
    """A JSON text as the connector's library writes it: capitals, and pairs beyond the plane."""

    def written(char: str) -> str:
        if char in SHORT:
            return SHORT[char]
        if char < " " or char > "\uffff":
            units = char.encode("utf-16-be").hex().upper()
            return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        return char

    return f'{{"k":"{"".join(map(written, text))}"}}'.encode()


@given(TEXTS)
def test_a_key_that_postgres_wrote_becomes_the_bytes_that_the_connector_writes(text: str) -> None:
    key = key_bytes(as_postgres(text))

    assert as_jackson(text) == key
    assert {"k": text} == orjson.loads(key)
