"""Change data capture: Postgres → Debezium → Kafka → typed change events."""

from __future__ import annotations

from cdc.change_event import ChangeEvent
from cdc.consumer import Change, Changes, ConsumerRetryPolicy, GroupStart, changes
from cdc.consumer.retry import ConsumerRetryPolicy as RetryPolicy
from cdc.consumer.start import GroupStart as Start
from cdc.envelope import Envelope, Operation
from cdc.errors import CdcError
from cdc.lsn import Lsn
from cdc.position import ChangePosition
from cdc.table import Column, ColumnKind, TableName, TableSchema

__all__ = [
    "CdcError",
    "Change",
    "ChangeEvent",
    "ChangePosition",
    "Changes",
    "Column",
    "ColumnKind",
    "ConsumerRetryPolicy",
    "Envelope",
    "GroupStart",
    "Lsn",
    "Operation",
    "RetryPolicy",
    "Start",
    "TableName",
    "TableSchema",
    "changes",
]
# `RetryPolicy` and `Start` are former names of `ConsumerRetryPolicy` and `GroupStart`.
