"""The outbox: rows that leave the source as messages, by the same connector and in its order.

The table keeps no rows. A caller that has something to say inserts a row and deletes it again in
one transaction; the log has the insert, and Debezium's event router makes it a message. What is
rolled back is never in the log's decoded stream, so it is never sent.

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
        # A position means nothing to who reads messages.
        "transforms.epoch.predicate": "outbox",
        "transforms.epoch.negate": "true",
        f"{_ROUTER}.type": "io.debezium.transforms.outbox.EventRouter",
        f"{_ROUTER}.predicate": "outbox",
        **{f"{_ROUTER}.{name}": column for name, column in _FIELDS.items()},
        f"{_ROUTER}.route.topic.replacement": f"{spec.outbox_prefix}${{routedByValue}}",
        # The payload is what was given, not what a parser makes of it.
        f"{_ROUTER}.table.expand.json.payload": "false",
        # An update says nothing: the insert before it was the message.
        f"{_ROUTER}.table.op.invalid.behavior": "error",
    }


def routed(config: Mapping[str, str]) -> bool:
    """Tells whether a connector of this configuration sends messages."""
    return f"{_ROUTER}.type" in config


def message_topics(spec: CaptureSpec, config: Mapping[str, str]) -> dict[str, str]:
    """Lets Connect make the topics of messages, whose names only the messages know.

    Connect then wants to make whatever topic is missing. It must not: a table's topic that was
    deleted has lost changes, so for all others it is asked for what no broker can give.
    """
    made = "topic.creation.outbox"
    return {
        "topic.creation.groups": "outbox",
        f"{made}.include": re.escape(spec.outbox_prefix) + ".*",
        f"{made}.partitions": str(spec.topic_partitions),
        f"{made}.replication.factor": str(spec.replication_factor),
        **{f"{made}.{name}": value for name, value in config.items()},
        # The leader of a partition that was made just now may refuse the first batch and take the
        # second, which is then before it for ever: so never two under way.
        "producer.override.max.in.flight.requests.per.connection": "1",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": _NO_BROKER_HAS_SO_MANY,
    }


def converters(usual: Mapping[str, str]) -> dict[str, str]:
    """Returns converters that pass on bytes and hand all else to the usual ones.

    Args:
        usual: Properties of the usual converters of keys and values.
    """
    inner = ".converter.delegate.converter.type"
    return {
        "key.converter": _BINARY,
        "value.converter": _BINARY,
        **{name.replace(".converter", inner, 1): value for name, value in usual.items()},
    }
