"""The outbox: rows that leave the source as messages, by the same connector and in its order.

The table keeps no rows. To send a message, a caller inserts a row and deletes it again in one
transaction. The log contains the insert, and Debezium's event router converts it to a message. A
transaction that is rolled back is never decoded, so its messages are never sent.

A message goes to `<source>.outbox.<topic>`. Its key is the stream and its value the payload, both
byte for byte; its headers are `id`, `type`, `version`, `correlation_id` and `tenant`, as text. So
messages of one stream share a partition and keep their order. Delivery is at least once: a
connector that was killed sends its last messages again, with the same `id`.

A message is sent if its transaction committed after capture began: messages from before that, or
between the loss of a slot and the new epoch, are no longer in the log.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdc.capture import CaptureSpec
    from cdc.table import TableName

TRANSFORMS: Final = "epoch,outbox"
_ROUTER: Final = "transforms.outbox"
_BINARY: Final = "io.debezium.converters.BinaryDataConverter"
_NO_BROKER_HAS_SO_MANY: Final = "32767"

_FIELDS: Final = {
    "table.field.event.id": "message_id",
    "table.field.event.key": "stream",
    "table.field.event.payload": "payload",
    "route.by.field": "topic",
    "table.fields.additional.placement": (
        "type:header,version:header,correlation_id:header,tenant:header"
    ),
}


def router(spec: CaptureSpec, table: TableName) -> dict[str, str]:
    """Routes the inserted rows of a table to topics; deletes and tombstones end there.

    Args:
        spec: What is captured.
        table: The outbox. `stream` and `payload` are bytes, which the converters pass on.
    """
    topic = re.escape(table.topic(spec.name))
    return {
        "transforms": TRANSFORMS,
        "predicates": "outbox",
        "predicates.outbox.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates.outbox.pattern": topic,
        # Readers of messages have no use for a log position.
        "transforms.epoch.predicate": "outbox",
        "transforms.epoch.negate": "true",
        f"{_ROUTER}.type": "io.debezium.transforms.outbox.EventRouter",
        f"{_ROUTER}.predicate": "outbox",
        **{f"{_ROUTER}.{name}": column for name, column in _FIELDS.items()},
        f"{_ROUTER}.route.topic.replacement": f"{spec.outbox_prefix}${{routedByValue}}",
        # The payload is sent unchanged, without parsing.
        f"{_ROUTER}.table.expand.json.payload": "false",
        # An update is ignored: the preceding insert was the message.
        f"{_ROUTER}.table.op.invalid.behavior": "error",
    }


def routed(config: Mapping[str, str]) -> bool:
    """Returns whether a connector with this configuration sends messages."""
    return f"{_ROUTER}.type" in config


def message_topics(spec: CaptureSpec, config: Mapping[str, str]) -> dict[str, str]:
    """Lets Connect create the topics of messages, whose names are known only from the messages.

    Connect would then create every missing topic. It must not, because a deleted topic of a table
    has lost changes. For all other topics, the properties are therefore ones that no broker can
    satisfy.
    """
    made = "topic.creation.outbox"
    return {
        "topic.creation.groups": "outbox",
        f"{made}.include": re.escape(spec.outbox_prefix) + ".*",
        f"{made}.partitions": str(spec.topic_partitions),
        f"{made}.replication.factor": str(spec.replication_factor),
        **{f"{made}.{name}": value for name, value in config.items()},
        # The leader of a new partition may refuse the first batch and accept the
        # second, which would reverse their order: never two in flight.
        "producer.override.max.in.flight.requests.per.connection": "1",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": _NO_BROKER_HAS_SO_MANY,
    }


def converters(usual: Mapping[str, str]) -> dict[str, str]:
    """Returns converters that pass bytes through, and use the usual converters for the rest.

    Args:
        usual: Properties of the usual converters of keys and values.
    """
    inner = ".converter.delegate.converter.type"
    return {
        "key.converter": _BINARY,
        "value.converter": _BINARY,
        **{name.replace(".converter", inner, 1): value for name, value in usual.items()},
    }
