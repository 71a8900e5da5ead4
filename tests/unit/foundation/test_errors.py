"""Errors cross from process to process with all that they carry."""

from __future__ import annotations

import pickle

import pytest

from cdc.connect.errors import ConnectError
from eventstore.errors import EventStoreError, Rejected, WrongExpectedVersionError
from foundation.errors import EXIT_UNHEALTHY, EXIT_USAGE, PlatformError
from headwater.errors import HeadwaterError, UnhealthyError, UsageError
from projections.errors import DuplicateKeyError


@pytest.mark.parametrize(
    "error",
    [
        ConnectError("the connector does not answer", detail="HTTP 503", hint="wait"),
        UsageError("no view is named x", hint="headwater view list"),
        Rejected("the seat is taken"),
        WrongExpectedVersionError("seat-1", expected=3, actual=4),
        DuplicateKeyError("two rows have one key", detail="keys: 1", example=("id 1",)),
    ],
)
def test_an_unpickled_error_is_the_error(error):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own

    assert type(again) is type(error)
    assert (str(error), error.args, vars(error)) == (str(again), again.args, vars(again))


def test_every_package_has_the_one_base():
    assert issubclass(EventStoreError, PlatformError)
    assert issubclass(HeadwaterError, PlatformError)
    assert (EXIT_USAGE, EXIT_UNHEALTHY, 1) == (
        UsageError.exit_code,
        UnhealthyError.exit_code,
        EventStoreError.exit_code,
    )
