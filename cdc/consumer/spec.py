"""ConsumerSpec: which changes a group reads, from where, and within which limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdc.consumer.errors import ConsumerSpecError
from cdc.consumer.retry import ConsumerRetryPolicy
from cdc.consumer.start import GroupStart
from cdc.topic_names import TopicNames

if TYPE_CHECKING:
    from cdc.table import TableName

RECORDS_HELD_MAX: Final = 1_000
"""Records of one partition read and not yet acknowledged: enough to stay busy during a fetch."""

BYTES_HELD_MAX: Final = 16 * 1024 * 1024
"""Bytes of one partition; a single record may be larger."""

PARKED_KEYS_MAX: Final = 1_000
"""More parked keys indicate a broken handler: the consumer stops instead of parking everything."""

SESSION_TIMEOUT_S: Final = 30.0
"""After a crash, its partitions wait this long for another member; less mistakes pauses for one."""

HANDOVER_S: Final = 5.0
"""How long a partition that moves to another member waits for its changes in progress."""

_GROUP: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SESSION_MIN_S: Final = 6.0  # brokers refuse less, unless configured otherwise
_TOPIC_LENGTH_MAX: Final = 249


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSpec:
    """How a consumer group reads the changes of a source.

    Attributes:
        kafka_bootstrap: `host:port[,host:port]`.
        source: Name of the source, the prefix of its topics.
        group: The consumer group: letters, digits, `_`, `.` and `-`, 100 at most.
        tables: The tables.
        start: Where to begin partitions without a committed offset.
        escaped_topics: Tables that the source declares as `escaped_topics`.
        retry: How a failed handler is retried.
        records_held_max: Most records of one partition that are read and not yet acknowledged.
        bytes_held_max: Most bytes of these records.
        parked_keys_max: Most parked keys; the consumer stops instead of parking more.
        session_timeout_s: Silence after which a member counts as crashed; at least 6.
        handover_s: How long a partition that moves to another member waits for its changes in
            progress.

    Raises:
        ConsumerSpecError: A value is invalid.
    """

    kafka_bootstrap: str
    source: str
    group: str
    tables: tuple[TableName, ...]
    start: GroupStart = GroupStart.BEGINNING
    escaped_topics: frozenset[TableName] = frozenset()
    retry: ConsumerRetryPolicy = field(default_factory=ConsumerRetryPolicy)
    records_held_max: int = RECORDS_HELD_MAX
    bytes_held_max: int = BYTES_HELD_MAX
    parked_keys_max: int = PARKED_KEYS_MAX
    session_timeout_s: float = SESSION_TIMEOUT_S
    handover_s: float = HANDOVER_S

    def __post_init__(self) -> None:
        if not self.tables:
            raise ConsumerSpecError(f"group {self.group} reads no tables")
        if not _GROUP.fullmatch(self.group):
            raise ConsumerSpecError(
                "a group name has only letters, digits, '_', '.' and '-'",
                detail=f"{self.group!r:.120}",
                hint="use at most 100 characters, starting with a letter or digit",
            )
        if len(self.parked_topic) > _TOPIC_LENGTH_MAX:
            raise ConsumerSpecError("the names of source and group are too long for a topic")
        if self.records_held_max < 1 or self.bytes_held_max < 1 or self.parked_keys_max < 0:
            raise ConsumerSpecError(
                "limits of records and bytes must be positive, and parked_keys_max not negative"
            )
        if self.session_timeout_s < _SESSION_MIN_S or self.handover_s < 0:
            raise ConsumerSpecError(
                f"session_s must be at least {_SESSION_MIN_S:.0f}, and handover_s not negative"
            )

    @property
    def topics(self) -> dict[str, TableName]:
        """The tables by their topics."""
        names = TopicNames(self.source, self.escaped_topics)
        return {names.of(table): table for table in self.tables}

    @property
    def parked_topic(self) -> str:
        """Returns the topic of the group's parked records.

        No source can have a topic with that name: names of sources contain no hyphen.
        """
        return parked_topic(self.source, self.group)


def parked_topic(source: str, group: str) -> str:
    """Returns the topic of a group's parked records from a source."""
    return f"headwater-parked.{source}.{group}"
