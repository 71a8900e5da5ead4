"""The contract of every sink, as tests: a new sink adds a subclass with a `sink` fixture.

Values are of every kind; changes come in every order, twice, in pieces.
"""

from __future__ import annotations

import secrets
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from cdc.position import version_of
from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import encoder
from projections.changes.row_change import Applied, RowChange
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.views import Store
from projections.errors import NoStoredRowError
from projections.planning.view_plan import ViewPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from projections.changes.sink import Sink

_COLUMNS = (
    Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("part", ColumnKind.TEXT, "text", nullable=False),
    Column("paid", ColumnKind.BOOLEAN, "boolean"),
    Column("total", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
    Column("any digits", ColumnKind.NUMERIC, "numeric"),
    Column("weight", ColumnKind.FLOAT, "double precision"),
    Column("note", ColumnKind.TEXT, "text"),
    Column("token", ColumnKind.UUID, "uuid"),
    Column("extra", ColumnKind.JSON, "jsonb"),
    Column("day", ColumnKind.DATE, "date"),
    Column("at_time", ColumnKind.TIME, "time without time zone"),
    Column("noted_at", ColumnKind.TIMESTAMP, "timestamp without time zone"),
    Column("placed_at", ColumnKind.TIMESTAMPTZ, "timestamp with time zone"),
    Column("blob", ColumnKind.BYTES, "bytea"),
)
_FIRST = version_of(1, 0)  # the first version of an epoch, and as many to the next


def make_plan(keys: tuple[str, ...] = ("id", "part")) -> ViewPlan:
    """Returns a plan with an unused name."""
    table = TableSchema(TableName("public", "things"), _COLUMNS, keys)
    name = f"things_{secrets.token_hex(5)}"
    return ViewPlan(name, "t", "t.public.things", table, keys or (ROW_ID_COLUMN,), frozenset(Store))


def make_row(number: int = 1, part: str = "a", **values: object) -> dict[str, object]:
    """Returns a row with a value of every kind."""
    row: dict[str, object] = {
        "id": number,
        "part": part,
        "paid": True,
        "total": Decimal("12.50"),
        "any digits": Decimal("1.230000000000000000000000000000000000000000001"),
        "weight": 0.1,
        "note": 'søster: \\ " 🚲',
        "token": "8c2ee2a4-51a5-4d2f-9d4d-8a7c7f0e7c11",
        "extra": '{"a": 1.0, "a": 9007199254740993}',
        "day": date(2024, 2, 29),
        "at_time": time(23, 59, 59, 999999),
        "noted_at": datetime(1969, 12, 31, 23, 59, 59, 1),  # noqa: DTZ001  # has none at the source
        "placed_at": datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
        "blob": b"\x00\xff",
    }
    return row | values


def upsert(version: int, row: dict[str, object], unchanged: tuple[str, ...] = ()) -> RowChange:
    """Returns an upsert of a row of `make_plan()`."""
    emptied = row | dict.fromkeys(unchanged)
    return RowChange((row["id"], row["part"]), _FIRST + version, emptied, 1, unchanged)


def moved(version: int, number: int, from_number: int) -> RowChange:
    """Returns a row that came under another key with its note unchanged."""
    change = upsert(version, make_row(number), unchanged=("note",))
    return structs.replace(change, base=(from_number, "a"), moved_at=change.version)


def delete(version: int, number: int = 1, part: str = "a") -> RowChange:
    """Returns a delete of a key of `make_plan()`."""
    return RowChange((number, part), _FIRST + version, None, 1)


drawn_changes = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("ab:"), st.integers(1, 12), st.booleans()),
    max_size=14,
    # one change of a key has one version, as in the source's log
    unique_by=lambda drawn: (drawn[0], drawn[1], drawn[2]),
)


def latest(changes: Iterable[RowChange]) -> list[RowChange]:
    """Returns one change per key, the one with the greatest version.

    Duplicates and order do not matter, with one exception: a change that keeps unchanged values
    (`RowChange.unchanged_columns`) must come after the one that has them, as it does in the log.

    Raises:
        NoStoredRowError: A change keeps values of a row that the same batch deletes before it.
    """
    newest: dict[tuple[object, ...], RowChange] = {}
    for change in changes:
        seen = newest.get(change.key)
        if seen is None:
            newest[change.key] = change
        elif change.version > seen.version:
            newest[change.key] = follow(seen, change)
    return list(newest.values())


def follow(older: RowChange, newer: RowChange) -> RowChange:
    """Returns `newer`, its unchanged values taken from `older` as far as that has them."""
    if newer.row is None or not newer.unchanged_columns:
        return newer
    if older.row is None:
        raise NoStoredRowError(
            "a change needs values of a deleted row", detail=", ".join(newer.unchanged_columns)
        )
    row = dict(newer.row)
    for name in newer.unchanged_columns:
        row[name] = older.row[name]
    unchanged = tuple(name for name in newer.unchanged_columns if name in older.unchanged_columns)
    return RowChange(newer.key, newer.version, row, newer.committed_at_us, unchanged)


class SinkContract:
    """The contract of every sink. A subclass has the fixture `open_sink`, which opens a new one."""

    @pytest.fixture
    def sink(self, open_sink: Callable[[], Sink]) -> Iterable[Sink]:
        """An open sink."""
        sink = open_sink()
        yield sink
        sink.close()

    def test_every_kind_of_value_comes_back_exactly(self, sink: Sink) -> None:
        plan = make_plan()
        rows = [
            make_row(1),
            make_row(2, "", note="", weight=-0.0),
            make_row(3, "x" * 900, **dict.fromkeys([c.name for c in _COLUMNS[2:]])),
            make_row(-(2**63), "\u0001é\U0001f600", weight=float("nan"), extra="null", blob=b""),
        ]
        sink.prepare(plan)

        applied = sink.apply(plan, [upsert(1, row) for row in rows])

        assert applied == Applied(upserted=4)
        assert _sorted(map(encoder(plan.schema), rows)) == _stored(sink, plan)

    def test_only_a_newer_change_is_applied(self, sink: Sink) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(5, make_row(note="five"))])

        applied = [
            sink.apply(plan, [upsert(version, make_row(note=str(version)))])
            for version in (4, 5, 6)
        ]

        assert applied == [Applied(stale=1), Applied(stale=1), Applied(upserted=1)]
        assert [row["note"] for row in _stored(sink, plan)] == ["6"]

    def test_a_delete_is_remembered_by_another_instance(
        self, sink: Sink, open_sink: Callable[[], Sink]
    ) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(1, make_row(1))])
        sink.apply(plan, [delete(5, 1), delete(5, 2)])
        other = open_sink()

        applied = other.apply(plan, [upsert(4, make_row(1)), upsert(4, make_row(2))])

        assert applied == Applied(stale=2)
        assert _stored(other, plan) == []
        assert other.apply(plan, [upsert(6, make_row(1))]) == Applied(upserted=1)
        other.close()

    @pytest.mark.parametrize("key", ["part", "token", "day", "total", "blob"])
    def test_keys_of_every_kind_work(self, sink: Sink, key: str) -> None:
        plan = make_plan(keys=(key,))
        sink.prepare(plan)
        row = make_row()
        change = RowChange((row[key],), _FIRST + 1, row, 1)
        sink.apply(plan, [change])

        sink.apply(plan, [RowChange((row[key],), _FIRST + 2, None, 1)])

        assert sink.apply(plan, [change]) == Applied(stale=1)
        assert _stored(sink, plan) == []

    def test_a_late_delete_leaves_a_newer_row(self, sink: Sink) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(7, make_row())])

        sink.apply(plan, [delete(5)])

        assert len(_stored(sink, plan)) == 1

    def test_unchanged_values_are_kept(self, sink: Sink) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(1, make_row(note="kept", blob=b"kept", paid=True))])

        sink.apply(plan, [upsert(2, make_row(paid=False), unchanged=("note", "blob"))])

        expected = make_row(note="kept", blob=b"kept", paid=False)
        assert _stored(sink, plan) == [encoder(plan.schema)(expected)]

    def test_unchanged_values_of_a_late_change_do_no_harm(self, sink: Sink) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(3, make_row(note="new")), delete(3, 2)])

        applied = sink.apply(plan, [upsert(2, make_row(n), unchanged=("note",)) for n in (1, 2)])

        assert applied.upserted == 0
        assert [row["note"] for row in _stored(sink, plan)] == ["new"]

    def test_unchanged_values_of_no_row_are_refused_and_all_else_is_written(
        self, sink: Sink
    ) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [delete(1, 2), upsert(1, make_row(3, note="before the gap"))])
        after_a_gap = upsert(2 + _FIRST, make_row(3), unchanged=("note",))
        partial = [upsert(2, make_row(number), unchanged=("note",)) for number in (1, 2)]

        applied = sink.apply(plan, [*partial, after_a_gap, upsert(2, make_row(4))])

        assert [*partial, after_a_gap] == [refused.change for refused in applied.refused]
        assert {NoStoredRowError} == {type(refused.error) for refused in applied.refused}
        assert (applied.upserted, applied.stale) == (1, 0)
        assert ["before the gap", make_row()["note"]] == [
            row["note"] for row in _stored(sink, plan)
        ]

    def test_rows_that_swap_their_keys_take_their_unchanged_values_along(self, sink: Sink) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(8, make_row(n, note=f"of {n}")) for n in (1, 2, 3)])
        swapped = [moved(24, 2, from_number=1), moved(24, 1, from_number=2)]

        applied = sink.apply(plan, [*swapped, moved(24, 4, from_number=3), delete(24, 3)])

        assert (applied.upserted, applied.deleted, applied.refused) == (3, 1, ())
        assert {row["id"]: row["note"] for row in _stored(sink, plan)} == {
            1: "of 2",
            2: "of 1",
            4: "of 3",
        }
        assert Applied(stale=2) == sink.apply(plan, swapped)

    def test_a_row_that_was_read_or_came_later_lends_its_values_to_no_other_key(
        self, sink: Sink
    ) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(7, make_row(1, note="read")), upsert(32, make_row(2))])

        applied = sink.apply(plan, [moved(24, 3, from_number=1), moved(24, 4, from_number=2)])

        assert [refused.change.key[0] for refused in applied.refused] == [3, 4]

    def test_values_that_were_read_are_lent_to_no_other_key_by_the_row_that_kept_them(
        self, sink: Sink
    ) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(7, make_row(n, note="read")) for n in (1, 2)])
        partial = [upsert(8, make_row(n), unchanged=("note",)) for n in (1, 2)]
        assert (Applied(upserted=2), Applied(stale=2)) == (
            sink.apply(plan, partial),
            sink.apply(plan, partial),
        )
        sink.apply(plan, [upsert(16, make_row(1, note="logged"))])

        applied = sink.apply(plan, [moved(24, 3, from_number=1), moved(24, 4, from_number=2)])

        assert [refused.change.key[0] for refused in applied.refused] == [4]
        assert [row["note"] for row in _stored(sink, plan)] == ["logged", "read", "logged"]

    def test_versions_tell_what_needs_no_more_changes(self, sink: Sink) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(5, make_row(1)), delete(6, 2)])

        asked = [delete(0, number) for number in (1, 2, 3)]

        assert sink.versions(plan, asked) == [_FIRST + 5, _FIRST + 6, 0]

    def test_what_is_stored_of_a_key_is_told_with_its_version(self, sink: Sink) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(2, make_row(1)), upsert(3, make_row(2)), delete(4, 3)])

        held = sink.stored(plan, [(1, "a"), (2, "a"), (3, "a"), (9, "a")])

        rows = [encoder(plan.schema)(make_row(number)) for number in (1, 2)]
        assert [each.version for each in held] == [_FIRST + 2, _FIRST + 3, _FIRST + 4, 0]
        assert [[rows[0]], [rows[1]], [], []] == [list(each.documents) for each in held]

    def test_a_sweep_removes_older_rows_for_good(
        self, sink: Sink, open_sink: Callable[[], Sink]
    ) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(n, make_row(n)) for n in (1, 2, 5, 6)])
        sink.apply(plan, [delete(3, 7), delete(9, 8)])

        swept = sink.sweep(plan, _FIRST + 5)

        assert (swept, [row["id"] for row in _stored(sink, plan)]) == (2, [5, 6])
        other = open_sink()
        late = [upsert(4, make_row(n)) for n in (1, 3, 6, 7, 8)]
        assert Applied(stale=5) == other.apply(plan, late)
        assert Applied(stale=3) == other.apply(plan, [delete(4, n) for n in (1, 3, 6)])
        assert Applied(upserted=3) == other.apply(plan, [upsert(5, make_row(n)) for n in (1, 3, 7)])
        assert [row["id"] for row in _stored(other, plan)] == [1, 3, 5, 6, 7]
        assert other.versions(plan, [delete(0, n) for n in (8, 10)]) == [_FIRST + 9, _FIRST + 4]
        other.close()

    def test_a_sweep_may_come_again_or_late(self, sink: Sink) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(1, make_row(1)), upsert(9, make_row(2))])

        swept = [sink.sweep(plan, _FIRST + below) for below in (5, 5, 2)]

        assert swept == [1, 0, 0]
        assert Applied(stale=1) == sink.apply(plan, [upsert(4, make_row(1))])

    def test_a_sweep_removes_rows_without_a_key(self, sink: Sink) -> None:
        plan = make_plan(keys=())
        sink.prepare(plan)
        rows = [RowChange((f"001-{n}",), _FIRST + n, make_row(n), 0) for n in range(4)]
        sink.apply(plan, rows)

        swept = sink.sweep(plan, _FIRST + 2)

        assert (2, Applied(stale=4)) == (swept, sink.apply(plan, rows))
        assert [row["id"] for row in _stored(sink, plan)] == [2, 3]

    def test_a_view_that_is_prepared_again_has_all_it_had(
        self, sink: Sink, open_sink: Callable[[], Sink]
    ) -> None:
        plan = make_plan()
        sink.prepare(plan)
        sink.apply(plan, [upsert(5, make_row(1)), delete(5, 2)])
        sink.sweep(plan, _FIRST + 3)

        other = open_sink()
        other.prepare(plan)

        late = [upsert(4, make_row(1)), upsert(4, make_row(2)), upsert(2, make_row(3))]
        assert Applied(stale=3) == other.apply(plan, late)
        assert [row["id"] for row in _stored(other, plan)] == [1]
        other.close()

    def test_values_of_some_megabytes_and_what_keeps_them_are_written(self, sink: Sink) -> None:
        plan = make_plan()
        sink.prepare(plan)
        large = {n: str(n) * (600_000 << n % 3) for n in range(9)}
        sink.apply(plan, [upsert(1, make_row(n, note=note)) for n, note in large.items()])

        applied = sink.apply(plan, [upsert(2, make_row(n, paid=False), ("note",)) for n in large])

        assert applied == Applied(upserted=9)
        assert {row["id"]: (row["note"], row["paid"]) for row in _stored(sink, plan)} == {
            n: (note, False) for n, note in large.items()
        }

    def test_rows_without_a_key_are_written_once(self, sink: Sink) -> None:
        plan = make_plan(keys=())
        sink.prepare(plan)
        twins = [RowChange((f"001-{n}",), _FIRST, make_row(), 0) for n in range(2)]
        sink.apply(plan, twins)

        applied = sink.apply(plan, [*twins, RowChange(("001-2",), _FIRST, make_row(), 0)])

        assert applied == Applied(upserted=1, stale=2)
        assert len(_stored(sink, plan)) == 3

    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,  # each example has a view of its own
            HealthCheck.differing_executors,  # each subclass is another store
        ],
    )
    @given(drawn=drawn_changes, data=st.data())
    def test_any_order_duplication_and_batching_ends_in_the_same_state(
        self, sink: Sink, drawn: list[tuple[int, str, int, bool]], data: st.DataObject
    ) -> None:
        plan = make_plan()
        sink.prepare(plan)
        changes = [_change(*one) for one in drawn]
        twice = data.draw(st.permutations(changes + changes[: len(changes) // 2]))
        cut = data.draw(st.integers(0, len(twice)))

        for batch in (twice[:cut], twice[cut:], twice[: cut // 2]):
            sink.apply(plan, latest(batch))

        alive = [change.row for change in latest(changes) if change.row is not None]
        assert _sorted(map(encoder(plan.schema), alive)) == _stored(sink, plan)


def _change(number: int, part: str, version: int, deleted: bool) -> RowChange:
    if deleted:
        return delete(version, number, part)
    return upsert(version, make_row(number, part, note=str(version)))


def _stored(sink: Sink, plan: ViewPlan) -> list[dict[str, Any]]:
    return _sorted(dict(document) for document in sink.documents(plan))


def _sorted(documents: Iterable[Any]) -> list[Any]:
    return sorted(documents, key=lambda document: (document["id"], document["part"]))
