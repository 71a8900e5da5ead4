"""A consumer for application teams: typed changes in a consumer group, acknowledged one by one."""

from __future__ import annotations

from cdc.consumer.change import Change
from cdc.consumer.changes import Changes
from cdc.consumer.control import PartitionLag, drop, lag, move, parked, retry
from cdc.consumer.errors import (
    ConsumerError,
    ConsumerSpecError,
    GroupActiveError,
    GroupUnknownError,
    PauseTimeoutError,
    RecordsGoneError,
    TooManyParkedError,
    TopicRecreatedError,
)
from cdc.consumer.opening import changes
from cdc.consumer.parked_topic import ParkedKey
from cdc.consumer.pausing import GroupStatus, groups, pause, paused_at, resume
from cdc.consumer.reading import ChangeDecoder, read_changes
from cdc.consumer.retry import ConsumerRetryPolicy
from cdc.consumer.retry import ConsumerRetryPolicy as RetryPolicy
from cdc.consumer.spec import ConsumerSpec
from cdc.consumer.start import GroupStart
from cdc.consumer.start import GroupStart as Start

__all__ = [
    "Change",
    "ChangeDecoder",
    "Changes",
    "ConsumerError",
    "ConsumerRetryPolicy",
    "ConsumerSpec",
    "ConsumerSpecError",
    "GroupActiveError",
    "GroupStart",
    "GroupStatus",
    "GroupUnknownError",
    "ParkedKey",
    "PartitionLag",
    "PauseTimeoutError",
    "RecordsGoneError",
    "RetryPolicy",
    "Start",
    "TooManyParkedError",
    "TopicRecreatedError",
    "changes",
    "drop",
    "groups",
    "lag",
    "move",
    "parked",
    "pause",
    "paused_at",
    "read_changes",
    "resume",
    "retry",
]
