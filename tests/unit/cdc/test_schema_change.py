"""Shapes of tables: how two differ, and how rows of any age are carried over to the newest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.lsn import Lsn
from cdc.schema_change.difference import ChangeKind, changes_of, differences
from cdc.schema_change.shape import BASELINE, ColumnShape, ShapeVersion, TableHistory, TableShape
from cdc.schema_change.widening import widens
from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.planning.row_upcaster import Fitting, TableShapes, travelling
from projections.planning.schema_policy import as_seen

TABLE = TableName("public", "things")
KEY = ColumnShape(1, "id", "bigint")


def shape(*columns: ColumnShape, **changed) -> TableShape:
    return TableShape(7, TABLE, (KEY, *columns), (1,), **changed)


def column(number: int, name: str, **changed) -> ColumnShape:
    return ColumnShape(number, name, "text", **changed)


def version(place: int, shown: TableShape | None, **changed) -> ShapeVersion:
    made = ShapeVersion(place, Lsn(place * 10), None, shown, "ALTER TABLE", rewritten=False)
    return replace(made, **changed)


def fitting(history: TableHistory, out: frozenset[int] = frozenset()) -> Fitting:
    latest = history.latest
    assert latest is not None
    assert latest.shape is not None
    numbers = {c.name: c.number for c in latest.shape.columns if c.number not in out}
    columns = tuple(Column(name, ColumnKind.TEXT, "text") for name in numbers)
    shapes = TableShapes(history, numbers, left_out=latest.shape.names - numbers.keys())
    return Fitting(TableSchema(TABLE, columns), shapes)


@dataclass
class Source:
    """A Postgres in miniature: one row, whose table changes; and its log."""

    columns: list[ColumnShape] = field(default_factory=lambda: [KEY])
    row: dict[int, str | None] = field(default_factory=lambda: {1: "1"})
    numbers: int = 1
    lsn: int = 0
    versions: list[ShapeVersion] = field(default_factory=list)
    log: list[tuple[int, dict[str, str | None], int]] = field(default_factory=list)
    rewrites: int = 0

    def note(self, *, rewritten: bool = False) -> None:
        self.lsn += 1
        self.rewrites += rewritten
        command = "ALTER TABLE" if self.versions else BASELINE
        noted = TableShape(7, TABLE, tuple(self.columns), (1,), last_number=self.numbers)
        place = len(self.versions) + 1
        self.versions.append(
            ShapeVersion(place, Lsn(self.lsn), None, noted, command, rewritten=rewritten)
        )

    def write(self, value: str) -> None:
        self.lsn += 1
        self.row |= {c.number: f"{value}-{c.number}" for c in self.columns[1:]}
        self.log.append((self.lsn, self.image(), self.rewrites))

    def image(self) -> dict[str, str | None]:
        return {c.name: self.row[c.number] for c in self.columns}

    def add(self, name: str, missing: str | None, *, computed: bool) -> None:
        if any(c.name == name for c in self.columns):
            return
        self.numbers += 1
        filled = None if computed else missing
        made = column(self.numbers, name, default=computed or missing is not None, missing=filled)
        self.columns.append(made)
        self.row[self.numbers] = "computed" if computed else missing
        self.note(rewritten=computed)

    def drop(self, place: int) -> None:
        if len(self.columns) > 1:
            del self.columns[1 + place % (len(self.columns) - 1)]
            self.note()

    def rename(self, place: int, name: str) -> None:
        """Renames a column; the one that has the name now takes the other's."""
        if len(self.columns) > 1:
            chosen = 1 + place % (len(self.columns) - 1)
            old = self.columns[chosen].name
            self.columns = [
                replace(c, name=name if i == chosen else old if c.name == name else c.name)
                for i, c in enumerate(self.columns)
            ]
            self.note()


NAMES = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.text("xyz", max_size=2)),
        st.tuples(st.just("add"), NAMES, st.none() | st.text("xyz"), st.booleans()),
        st.tuples(st.just("drop"), st.integers(0, 5)),
        st.tuples(st.just("rename"), st.integers(0, 5), NAMES),
    ),
    max_size=30,
)


@given(STEPS, st.booleans(), st.frozensets(st.integers(2, 6)))
def test_a_record_of_any_age_becomes_what_postgres_makes_of_its_row(steps, looked, out) -> None:
    source = Source()
    source.note()
    for step, *arguments in steps:
        if step == "add":
            name, missing, computed = arguments
            source.add(name, missing, computed=computed)
        else:
            getattr(source, step)(*arguments)
    if looked:
        source.versions = [replace(v, rewritten=None) for v in source.versions]
    fits = fitting(TableHistory.of(source.versions), out)
    read = {c.name for c in source.columns if c.number not in out}

    for lsn, row, rewrites in source.log:
        fitted = fits.fit(row, lsn, read=False)
        known = source.rewrites == rewrites
        assert (fitted is not None) == known
        if lsn >= fits.settled_lsn and row.keys() == source.image().keys():
            # what is not even looked at needs no look
            assert fitted == {name: row[name] for name in read}
    if source.log and fitted is not None:
        assert fitted == {name: source.image()[name] for name in read}


@given(STEPS)
def test_differences_lead_from_each_shape_to_the_next(steps) -> None:
    source = Source()
    source.note()
    for step, *arguments in steps:
        if step == "add":
            name, missing, computed = arguments
            source.add(name, missing, computed=computed)
        elif step != "write":
            getattr(source, step)(*arguments)

    names = {c.number: c.name for c in source.versions[0].shape.columns}
    for later, changed in changes_of(TableHistory.of(source.versions)):
        by_name = {name: number for number, name in names.items()}
        for change in changed:
            if change.kind is ChangeKind.DROPPED:
                del names[by_name[change.what]]
            elif change.kind is ChangeKind.RENAMED:
                names[by_name[change.what]] = change.now
        known = later.shape.by_number
        added = {c.what for c in changed if c.kind is ChangeKind.ADDED}
        names |= {number: c.name for number, c in known.items() if c.name in added}
        assert names == {number: c.name for number, c in known.items()}
    for one, other in zip(source.versions, source.versions, strict=True):
        assert differences(one.shape, other.shape, None) == ()


def test_a_row_that_no_shape_explains_is_refused() -> None:
    fits = fitting(TableHistory.of([version(1, shape(column(2, "a")))]))

    for row in ({"id": 1, "b": 2}, {"id": 1}, {"id": 1, "a": 2, "b": 3}):
        with pytest.raises(LookupError):
            fits.fit(row, 15, read=False)
    with pytest.raises(LookupError):
        fits.fit({"id": 1, "a": 2}, 5, read=False)  # older than all that is known


def test_a_change_found_by_looking_leaves_open_which_shape_a_row_between_had() -> None:
    swapped = version(2, shape(column(2, "b"), column(3, "a")), seen_after=Lsn(12), rewritten=None)
    fits = fitting(TableHistory.of([version(1, shape(column(2, "a"), column(3, "b"))), swapped]))
    row = {"id": 1, "a": "2", "b": "3"}
    between = {"id": 1, "a": "2", "tmp": "3"}

    assert fits.settled_lsn == 20
    assert fits.fit(row, 11, read=False) == {"id": 1, "b": "2", "a": "3"}
    assert fits.fit(row, 12, read=False) is None
    assert fits.fit(between, 12, read=False) is None  # nobody saw this one: a read follows
    with pytest.raises(LookupError):
        fits.fit(between, 11, read=False)
    assert fits.fit(row, 20, read=False) == row


def test_a_read_may_have_seen_a_later_shape_than_its_position_says() -> None:
    older, newer = shape(column(2, "a")), shape(column(2, "a"), column(3, "b", missing="x"))
    fits = fitting(TableHistory.of([version(1, older), version(2, newer)]))

    assert fits.fit({"id": 1, "a": 2, "b": 3}, 15, read=True) == {"id": 1, "a": 2, "b": 3}
    assert fits.fit({"id": 1, "a": 2}, 15, read=True) == {"id": 1, "a": 2, "b": "x"}


def test_columns_that_were_left_out_at_capture_are_not_missed() -> None:
    history = TableHistory.of([version(1, shape(column(2, "secret"), column(3, "a")))])
    columns = (Column("id", ColumnKind.INTEGER, "bigint"), Column("b", ColumnKind.TEXT, "text"))
    fits = Fitting(TableSchema(TABLE, columns), TableShapes(history, {"id": 1, "b": 3}))

    assert fits.fit({"id": 1, "a": 2}, 15, read=False) == {"id": 1, "b": 2}


def test_only_columns_that_are_read_leave_open_what_an_older_row_means() -> None:
    before = version(1, shape(column(2, "a"), column(3, "b"), column(4, "x")))
    swapped = version(2, shape(column(2, "b"), column(3, "a"), column(4, "x")))
    other = version(2, shape(column(2, "a"), column(3, "b"), column(5, "x")))
    out = frozenset({4, 5})

    assert fitting(TableHistory.of([before, swapped]), out).settled_lsn == 20
    assert fitting(TableHistory.of([before, other]), out).settled_lsn == 0
    assert fitting(TableHistory.of([before, other])).settled_lsn == 20


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("integer", "bigint", True),
        ("bigint", "integer", False),
        ("integer", "numeric(12,2)", True),
        ("integer", "numeric(11,2)", False),
        ("character varying(5)", "text", True),
        ("text", "character varying", True),
        ("text", "character varying(5)", False),
        ("character varying(5)", "character varying(4)", False),
        ("numeric(5,2)", "numeric(7,4)", True),
        ("numeric(5,2)", "numeric(6,4)", False),
        ("numeric", "numeric(9,2)", False),
        ("numeric(5,2)", "numeric", True),
        ("real", "double precision", True),
        ("timestamp(3) without time zone", "timestamp without time zone", True),
        ("timestamp without time zone", "timestamp with time zone", False),
        ("text", "integer", False),
        ("public.mood", "text", False),
        ("integer[]", "bigint[]", False),
    ],
)
def test_only_what_loses_nothing_widens(old, new, expected) -> None:
    assert widens(old, new) is expected


def test_each_kind_of_change_says_whether_rows_must_be_read_again() -> None:
    base = shape(column(2, "a"), partitions=((21, "public.p1"),))

    def told(later: TableShape | None, rewritten=False, command="ALTER TABLE"):
        found = differences(base, later, rewritten, command)
        return [(c.kind, c.compatible, c.needs_read) for c in found]

    again = replace(base, columns=(KEY, column(2, "a", type_id=(25, 9))))
    mood = (("label 7", "sad"), ("type 8", "1 2"))
    typed = replace(base, columns=(KEY, replace(column(2, "a"), parts=mood)))
    added, renamed, wider = (
        replace(base, columns=(KEY, replace(column(2, "a"), parts=later)))
        for later in (
            (*mood, ("label 9", "calm")),
            (("label 7", "blue"), mood[1]),
            (mood[0], ("type 8", "1 2 3")),
        )
    )
    assert [c.kind for c in differences(typed, added, rewritten=False)] == []
    for later in (renamed, wider):
        (changed,) = differences(typed, later, rewritten=False)
        assert (changed.kind, changed.compatible, changed.needs_read, changed.number) == (
            ChangeKind.READS_OTHERWISE,
            True,
            True,
            2,
        )
    parts = ((21, "public.p1"), (22, "public.p2"))
    assert told(replace(base, columns=(KEY, column(2, "a"), column(3, "b")))) == [
        (ChangeKind.ADDED, True, False)
    ]
    assert told(again) == [(ChangeKind.RETYPED, True, False)]
    assert told(again, rewritten=None) == [(ChangeKind.RETYPED, True, True)]
    assert told(base, rewritten=True) == [(ChangeKind.REWRITTEN, True, True)]
    assert told(replace(base, key=(2,))) == [(ChangeKind.KEY_CHANGED, False, True)]
    assert told(replace(base, table=TableName("a", "b"))) == [
        (ChangeKind.TABLE_RENAMED, False, True)
    ]
    passed = replace(base, last_number=3)
    assert told(passed, rewritten=None) == [(ChangeKind.REWRITTEN, True, True)]
    assert told(passed) == []
    assert told(None) == told(replace(base, oid=8)) == [(ChangeKind.TABLE_DROPPED, False, True)]
    assert told(replace(base, partitions=parts)) == [(ChangeKind.PARTITION_ATTACHED, True, True)]
    assert told(replace(base, partitions=parts), command="CREATE TABLE") == [
        (ChangeKind.PARTITION_ATTACHED, True, False)
    ]
    assert told(replace(base, partitions=())) == [(ChangeKind.PARTITION_DETACHED, True, True)]


def test_what_becomes_of_a_column_that_is_not_read_matters_only_where_rows_were_rewritten() -> None:
    base = shape(column(2, "a"), column(3, "b"))

    def seen(*columns: ColumnShape, rewritten: bool = False):
        found = differences(base, shape(*columns), rewritten)
        return [str(change) for change in as_seen(found, TABLE, {3, 4})]

    retyped, a = column(3, "b", type_id=(25, 9)), column(2, "a")
    computed = column(4, "b", default=True)
    assert seen(a) == seen(a, column(3, "c")) == seen(a, retyped) == []
    assert seen(a, column(3, "b"), column(4, "d", missing="x", default=True)) == []
    assert seen(column(2, "c"), retyped) == ["column renamed: a (c)"]
    # the command may have given `a` other values, too
    assert seen(a, retyped, rewritten=True) == ["rows rewritten: public.things"]
    assert seen(a, computed, rewritten=True) == ["rows rewritten: public.things"]
    dropped = replace(differences(base, shape(a), rewritten=None)[0], looked=True)
    (looked,) = as_seen([dropped], TABLE, {3})
    assert (looked.kind, looked.needs_read, looked.looked) == (ChangeKind.REWRITTEN, True, True)


def test_a_default_becomes_what_the_log_would_have_carried() -> None:
    assert travelling(ColumnKind.BOOLEAN, "t") is True
    assert travelling(ColumnKind.INTEGER, "-5") == -5
    assert travelling(ColumnKind.BYTES, "\\x00ff") == "AP8="
    assert travelling(ColumnKind.TIMESTAMPTZ, "2019-12-31 22:00:00+00") == "2019-12-31 22:00:00+00"


def past(history: TableHistory, *columns: Column) -> Fitting:
    """How a history takes rows: those columns, which its table has in its newest shape."""
    latest = history.versions[-1].shape
    assert latest is not None
    numbers = {each.name: each.number for each in latest.columns}
    schema = TableSchema(TABLE, (Column("id", ColumnKind.INTEGER, "bigint"), *columns))
    return Fitting(schema, TableShapes(history, numbers, past=True))


def test_a_history_takes_an_older_row_as_it_was() -> None:
    whole = ColumnShape(2, "n", "integer", (23, -1))
    text = column(2, "n", type_id=(25, -1))
    history = TableHistory.of(
        [
            version(1, shape(text, column(3, "gone"))),
            version(2, shape(whole, column(3, "gone")), rewritten=True),
            version(3, shape(whole, column(4, "came", missing="d"))),
        ]
    )
    number = Column("n", ColumnKind.INTEGER, "integer")
    fits = past(history, number, Column("came", ColumnKind.TEXT, "text"))

    # of the log, by its position; what came later was not there, also if it had a default
    assert {"id": 1, "n": 5, "came": None} == fits.fit(
        {"id": 1, "n": "5", "gone": "x"}, 15, read=False
    )
    assert {"id": 1, "n": None, "came": None} == fits.fit(
        {"id": 1, "n": "five", "gone": "x"}, 15, read=False
    )
    assert {"id": 1, "n": 5, "came": None} == fits.fit(
        {"id": 1, "n": 5, "gone": "x"}, 25, read=False
    )
    # a row that was read may be younger than its position says: the form of its values tells
    for said in ("5", 5):
        assert {"id": 1, "n": 5, "came": None} == fits.fit(
            {"id": 1, "n": said, "gone": "x"}, 15, read=True
        )
    assert {"id": 1, "n": 6, "came": "y"} == fits.fit({"id": 1, "n": 6, "came": "y"}, 15, read=True)


def test_a_history_does_not_guess_which_of_two_a_row_is() -> None:
    # a rename to and fro: what was read in between may be of either column
    history = TableHistory.of(
        [
            version(1, shape(column(2, "a"), column(3, "b"))),
            version(2, shape(column(2, "b"), column(3, "a"))),
        ]
    )
    texts = (Column("b", ColumnKind.TEXT, "text"), Column("a", ColumnKind.TEXT, "text"))
    fits = past(history, *texts)
    row = {"id": 1, "a": "x", "b": "y"}
    assert {"id": 1, "b": "x", "a": "y"} == fits.fit(row, 15, read=False)
    assert row == fits.fit(row, 25, read=False)
    assert fits.fit(row, 15, read=True) is None
