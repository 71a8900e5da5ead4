"""TopicNames: which topic each table of a source has."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdc.table import TableName

TOPIC_LENGTH_MAX: Final = 249
"""Characters in a topic's name, Kafka's limit."""


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Names the topics of a source's tables.

    A table has the topic that Debezium gives it, in which each character that Kafka refuses is a
    `_`. Only a table that is declared as escaped has another, so that a table that is added later
    never changes the topic of one that is captured already.

    Attributes:
        source: Name of the source.
        escaped: Tables whose names are escaped in their topics, not sanitized.
    """

    source: str
    escaped: frozenset[TableName] = frozenset()

    def of(self, table: TableName) -> str:
        """Returns the topic of a table."""
        if table not in self.escaped:
            return table.topic(self.source)
        topic = table.escaped_topic(self.source)
        if len(topic) <= TOPIC_LENGTH_MAX:
            return topic
        digest = hashlib.sha256(f"{table.schema}\0{table.name}".encode()).hexdigest()
        return f"{self.source}.-{digest}"

    @property
    def outbox_prefix(self) -> str:
        """What the topics of the outbox's messages begin with."""
        return f"{self.source}.outbox."

    def of_outbox(self, table: TableName) -> bool:
        """Whether a message of the outbox could have the topic of a table."""
        return metric_name(self.of(table)).startswith(metric_name(self.outbox_prefix))


def metric_name(topic: str) -> str:
    """Returns what Kafka names metrics after; it refuses a second topic with the same."""
    return topic.replace(".", "_")
