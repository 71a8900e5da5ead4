"""Change data capture: Postgres → Debezium → Kafka → typed change events."""

from __future__ import annotations

from cdc.change_event import ChangeEvent
from cdc.consumer import Change, Changes, RetryPolicy, Start, changes
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
    "Envelope",
    "Lsn",
    "Operation",
    "RetryPolicy",
    "Start",
    "TableName",
    "TableSchema",
    "changes",
]
