"""What of Kafka's errors passes by itself is told as a broker that does not answer."""

from __future__ import annotations

import pytest
from kafka import errors

from cdc.broker.client.admin import named
from cdc.broker.errors import BrokerUnreachableError


@pytest.mark.parametrize(
    "error",
    [
        errors.KafkaConnectionError,
        errors.KafkaTimeoutError,
        errors.NodeNotReadyError,
        errors.RequestTimedOutError,
        errors.NotLeaderForPartitionError,
        errors.Cancelled,
        errors.CorrelationIdError,
    ],
)
def test_what_passes_is_to_be_tried_again(error: type[Exception]) -> None:
    answered = pytest.raises(BrokerUnreachableError, match="kafka does not answer")
    with answered as told, named("host:9092"):
        raise error
    assert told.value.retriable
    assert f"host:9092: {error.__name__}" == told.value.detail


@pytest.mark.parametrize(
    "error", [errors.TopicAuthorizationFailedError, errors.IllegalStateError, ValueError]
)
def test_what_does_not_pass_is_not(error: type[Exception]) -> None:
    with pytest.raises(error), named("host:9092"):
        raise error
