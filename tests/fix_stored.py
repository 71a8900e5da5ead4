"""Events as a log would hold them, without a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.model.event import StoredEvent

if TYPE_CHECKING:
    from eventstore.model.event import NewEvent

TENANT, STREAM = "default", "order-1"


def stored(new: NewEvent, **changed) -> StoredEvent:
    """What a log has after `new` was appended as the first event of `order-1`."""
    event = StoredEvent(
        global_position=7,
        tenant=TENANT,
        stream=STREAM,
        stream_position=1,
        type=new.type,
        schema_version=new.schema_version,
        event_id=new.event_id,
        data=new.data,
        metadata=None,
        tags=new.tags,
        correlation_id=None,
        causation_id=None,
        actor=None,
        occurred_at=new.occurred_at,
        recorded_at=new.occurred_at,
    )
    return event._replace(**changed)
