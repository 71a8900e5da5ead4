"""States of many keys at once, from all their changes as Arrow columns.

The rules are those of `projections.stores.delta.history.states`, for histories whose rows count
from their commit. Every function gets all changes of each key. It expects no stored states, and no
sweeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.table import ColumnKind
from projections.definition.columns import VERSION_COLUMN
from projections.stores.delta.arrow import arrow_type, decoded_rows
from projections.stores.delta.history.arrow import CURRENT, LIVE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from projections.stores.delta.history.arrow import HistoryForm

    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_EXACT_KINDS: Final = {
    ColumnKind.BOOLEAN,
    ColumnKind.INTEGER,
    ColumnKind.TEXT,
    ColumnKind.UUID,
    ColumnKind.DATE,
    ColumnKind.TIMESTAMP,
    ColumnKind.TIMESTAMPTZ,
    ColumnKind.BYTES,
}
"""Kinds whose values are equal only if their Arrow forms are."""


def known_changes(keys: Integers, versions: Integers, at_us: Integers) -> Integers:
    """Returns the order of changes by key and log position, without repeated copies.

    A copy of a change counts only if it was recorded earlier than every copy before it in the
    topic, as if the copies were applied one by one.

    Args:
        keys: The key of each change as a number; changes are in the order of their topic.
        versions: Their log positions.
        at_us: When they were recorded, microseconds since 1970, UTC.

    Returns:
        Their indices. Copies that count follow each other, the one recorded first is last.
    """
    order = np.lexsort((versions, keys))
    copies = _same(keys[order]) & _same(versions[order])
    if not copies.any():
        return order
    least_us, counts = at_us[order], np.ones(len(order), np.bool_)
    for index in np.flatnonzero(copies).tolist():
        counts[index + 1] = least_us[index + 1] < least_us[index]
        least_us[index + 1] = min(least_us[index], least_us[index + 1])
    return order[counts]


def states_of(form: HistoryForm, changes: pa.Table, keys: Integers) -> pa.Table:
    """Returns all states of some keys.

    Args:
        form: The history's form; its rows have no time of their own.
        changes: All changes of the keys, in the order of `known_changes`, in `changes_schema`.
        keys: The key of each change as a number, rising.

    Returns:
        A table of `states_schema`.
    """
    counted, since_us = _steps(keys, _integers(changes, VERSION_COLUMN), _integers(changes, "_at"))
    if not len(counted):
        return form.states_schema.empty_table()
    live = changes.column(LIVE).to_numpy()[counted]
    of_key = _same(keys[counted])
    joined = of_key & live[1:] & live[:-1]
    pairs = np.flatnonzero(joined)
    joined[pairs] = _same_rows(form, changes, counted[pairs], counted[pairs + 1])
    first = np.flatnonzero(np.concatenate([[True], ~joined]))
    last = np.concatenate([first[1:] - 1, [len(counted) - 1]])
    first, last = first[live[first]], last[live[first]]
    ended = np.concatenate([of_key, [False]])[last]
    until_us = np.concatenate([since_us[1:], [0]])[last]
    versions = _integers(changes, VERSION_COLUMN)[counted]
    rows = changes.take(pa.array(counted[last]))
    since, until = pa.array(since_us[first]), pa.array(until_us, mask=~ended)
    version, none = pa.array(versions[first]), pa.nulls(len(first), pa.int64())
    added = {
        "valid_from": since,
        "valid_to": until,
        CURRENT: pa.array(~ended),
        "recorded_from": since,
        "recorded_to": none,
        VERSION_COLUMN: version,
        "_recorded_version": version,
        "_last_version": pa.array(versions[last]),
        "_last_at": pa.array(since_us[last]),
    }
    arrays = [
        added[field.name].cast(field.type) if field.name in added else rows.column(field.name)
        for field in form.states_schema
    ]
    return pa.Table.from_arrays(arrays, schema=form.states_schema)


def _steps(keys: Integers, versions: Integers, at_us: Integers) -> tuple[Integers, Integers]:
    """Returns the changes that count, and the time from which each counts; see `states.steps`."""
    newest = np.flatnonzero(np.append(~(_same(keys) & _same(versions)), True)[: len(keys)])
    keys, since_us = keys[newest], at_us[newest]
    later = _same(keys) & (since_us[:-1] > since_us[1:])
    for key in np.unique(keys[:-1][later]).tolist():
        start, end = np.searchsorted(keys, (key, key + 1))
        since_us[start:end] = np.minimum.accumulate(since_us[start:end][::-1])[::-1]
    last = np.append(~(_same(keys) & _same(since_us)), True)[: len(keys)]
    return newest[last], since_us[last]


def _same_rows(form: HistoryForm, changes: pa.Table, one: Integers, other: Integers) -> Flags:
    """Returns whether rows form one state, as defined by `Rule.same`."""
    differs, may_differ = np.zeros(len(one), np.bool_), np.zeros(len(one), np.bool_)
    for name in form.rule.tracked:
        column = form.plan.schema.by_name[name]
        a, b = (changes.column(name).take(pa.array(numbers)) for numbers in (one, other))
        unequal = pc.fill_null(pc.not_equal(a, b), False)
        unequal = pc.or_(unequal, pc.not_equal(a.is_valid(), b.is_valid())).to_numpy()
        exact = column.kind in _EXACT_KINDS or pa.types.is_decimal(arrow_type(column))
        if exact:
            differs |= unequal
        else:
            may_differ |= unequal
    unsure = np.flatnonzero(may_differ & ~differs)
    if len(unsure):
        a_rows, b_rows = (
            decoded_rows(form.plan, changes.take(pa.array(numbers[unsure])))
            for numbers in (one, other)
        )
        pairs = zip(a_rows, b_rows, strict=True)
        differs[unsure] = [not form.rule.same(a_row, b_row) for a_row, b_row in pairs]
    return ~differs


def _same(sorted_values: Integers) -> Flags:
    """Returns whether each value equals the next one."""
    same: Flags = sorted_values[1:] == sorted_values[:-1]
    return same


def _integers(table: pa.Table, name: str) -> Integers:
    numbers: Integers = table.column(name).cast(pa.int64()).to_numpy()
    return numbers
