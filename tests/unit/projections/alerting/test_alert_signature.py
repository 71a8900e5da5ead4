"""Signatures of webhooks: nobody without the secret can send a message, change or repeat it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.alerting.signature import ID, SIGNATURE, TIMESTAMP, signed, verify
from projections.errors import AlertSignatureError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@given(st.text(min_size=1), st.binary(), st.text(min_size=1, alphabet=st.characters(codec="ascii")))
def test_what_is_signed_is_taken_and_nothing_else(secret: str, body: bytes, name: str) -> None:
    secret = secret.replace("whsec_", "")
    headers = signed("m1", body, secret or "s")
    assert "m1" == verify({k.title(): v for k, v in headers.items()}, body, secret or "s")
    for changed in (
        (headers, body + b"x", secret or "s"),
        (headers, body, (secret or "s") + "x"),
        (headers | {ID: f"m1{name}"}, body, secret or "s"),
        (headers | {TIMESTAMP: str(int(headers[TIMESTAMP]) - 1)}, body, secret or "s"),
        (headers | {SIGNATURE: ""}, body, secret or "s"),
        ({}, body, secret or "s"),
    ):
        with pytest.raises(AlertSignatureError):
            verify(*changed)


def test_a_message_is_taken_for_some_minutes() -> None:
    old = signed("m1", b"{}", SECRET, time.time() - 299)
    assert "m1" == verify(old, b"{}", SECRET)
    with pytest.raises(AlertSignatureError, match="too old"):
        verify(signed("m1", b"{}", SECRET, time.time() - 400), b"{}", SECRET)
    with pytest.raises(AlertSignatureError, match="too old"):
        verify(signed("m1", b"{}", SECRET, time.time() + 400), b"{}", SECRET)


def test_one_of_several_signatures_is_enough_while_a_secret_is_replaced() -> None:
    headers = signed("m1", b"{}", SECRET)
    both = headers | {SIGNATURE: f"v1,AAAA v1a,BBBB {headers[SIGNATURE]}"}
    assert "m1" == verify(both, b"{}", SECRET)


def test_a_secret_that_is_no_base64_is_told() -> None:
    with pytest.raises(AlertSignatureError, match="base64"):
        signed("m1", b"", "whsec_???")


def test_it_is_what_others_who_follow_standard_webhooks_compute() -> None:
    """The example that the libraries of Standard Webhooks are tested with."""
    found = signed("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', SECRET, 1614265330)
    assert "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" == found[SIGNATURE]
