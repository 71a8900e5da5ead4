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

    A table has the topic that Debezium gives it, in which `_` replaces each character that Kafka
    refuses. Only a table declared as escaped has another name, so adding a table never changes the
    topic of a captured one.

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
        """Prefix of the topics of the outbox's messages."""
        return f"{self.source}.outbox."

    def of_outbox(self, table: TableName) -> bool:
        """Returns whether an outbox message could be sent to the topic of a table."""
        return metric_name(self.of(table)).startswith(metric_name(self.outbox_prefix))


def metric_name(topic: str) -> str:
    """Returns a topic's name in Kafka's metrics; Kafka refuses a second topic with the same one."""
    return topic.replace(".", "_")
