"""Records of a history, delivered in pieces, and the states that they must end in."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
from hypothesis import strategies as st

from cdc.values import UNCHANGED_PLACEHOLDER
from projections.changes.applier import TaskApplier
from projections.changes.task_outcome import BlockedKeys
from projections.definition.views import Store
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.stores.delta.history.states import HistoryChange, HistoryState, Rule, history
from tests.fix_log import PLAN, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from projections.changes.record import Record
    from projections.stores.delta.history.sink import HistorySink


COLUMNS = ("id", "note", "big")


def things(tracked: tuple[str, ...]) -> ViewPlan:
    """A history of the table of `fix_log`, under an unused name."""
    name, kept = f"things_{secrets.token_hex(5)}", HistoryPlan(tracked)
    return replace(PLAN, name=name, to=frozenset([Store.TABLE]), history=kept)


def expected(
    records: Iterable[Record], tracked: tuple[str, ...]
) -> dict[tuple[object, ...], list[HistoryState]]:
    """The states that a log in order comes to, every row whole."""
    changes: dict[tuple[object, ...], list[HistoryChange]] = {}
    rows: dict[int, Any] = {}
    for record in records:
        value = orjson.loads(record.value or b"")
        version = int(record.epoch or 0) << 56 | value["source"]["lsn"]
        at_us, row = value["source"]["ts_us"], value["after"]
        if value["op"] == "t":
            for known in changes.values():
                known.append(HistoryChange(version, at_us, None))
            continue
        key = orjson.loads(record.key or b"")["id"]
        if row is not None:
            from_key = orjson.loads(record.old_key)["id"] if record.old_key else key
            if row["big"] == UNCHANGED_PLACEHOLDER:
                row["big"] = rows[from_key]["big"]
            rows[key] = row
        changes.setdefault((key,), []).append(HistoryChange(version, at_us, row))
    found = {key: history(known, Rule(tracked)) for key, known in sorted(changes.items())}
    return {
        key: sorted(states, key=lambda state: state.identity)
        for key, states in found.items()
        if states
    }


def deliver(sink: HistorySink, plan: ViewPlan, records: Sequence[Record]) -> TaskApplier:
    """Takes records as the job does."""
    delivery = TaskApplier([plan], lambda: sink, {plan.name: BlockedKeys()})
    delivery.take(TOPIC, records)
    delivery.finish()
    return delivery


def pieces(data: st.DataObject, records: Sequence[Record]) -> list[Sequence[Record]]:
    ends = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=4)))
    return [records[a:b] for a, b in zip([0, *ends], [*ends, len(records)], strict=True)]
