"""A name that does not exist is answered with the one that is like it, or with what there is."""

from __future__ import annotations

import pytest

from foundation.suggestion import did_you_mean


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ordrs", "did you mean orders?"),
        ("customer", "did you mean customers?"),
        ("zzz", "views: orders, customers"),
        ("", "views: orders, customers"),
    ],
)
def test_the_nearest_name_is_suggested_if_it_is_near(name, hint):
    views = iter(["orders", "customers"])

    assert hint == did_you_mean(name, views, "views: orders, customers")
