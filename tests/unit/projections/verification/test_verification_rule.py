"""The rule of verification, on every interleaving of writers, a view that follows, and a reader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import event, given, settings
from hypothesis import strategies as st

from projections.changes.sink import StoredKey
from projections.verification.recheck import judge
from projections.verification.report import KeyVerdict
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Row = int | None


@dataclass
class World:
    """A source with one key, its log, and a view that applies the log in order, sometimes twice.

    A commit is in the log before it is seen: `commit` writes it, `show` lets others see it. So
    does a read of the row, which the view takes like a change, at a position before it.
    """

    log: list[tuple[int, Row]] = field(default_factory=list)  # version, row
    seen: int = 0  # entries of the log that snapshots see
    end: int = 8
    applied: int = 0
    view: tuple[int, Row] = (0, None)
    number: int = 0

    def write(self, deletes: bool) -> None:
        if self.seen < len(self.log):
            return  # the row is locked until the transaction before has ended
        self.number += 1
        self.log.append((self.end, None if deletes else self.number % 3))
        self.end += 8

    def show(self) -> None:
        self.seen = len(self.log)

    def row(self) -> Row:
        changes = [row for version, row in self.log[: self.seen] if version % 8 == 0]
        return changes[-1] if changes else None

    def read_again(self) -> None:
        """A read stands for the position before which it begins; writers of then have ended."""
        self.show()
        self.log.append((self.end - 1, self.row()))
        self.seen = len(self.log)
        self.end += 8

    def apply(self) -> None:
        if self.applied < len(self.log):
            self.take(self.log[self.applied])
            self.applied += 1

    def take(self, change: tuple[int, Row]) -> None:
        if change[0] > self.view[0]:
            self.view = change

    def again(self, back: int) -> None:
        for change in self.log[max(0, self.applied - back) : self.applied]:
            self.take(change)

    def catch_up(self, end: int) -> None:
        while self.applied < len(self.log) and self.log[self.applied][0] < end:
            self.apply()

    def held(self) -> StoredKey:
        version, row = self.view
        return StoredKey(version, () if row is None else ({"row": row},))


def document(row: Row) -> Mapping[str, object] | None:
    return None if row is None else {"row": row}


_acts = st.lists(
    st.sampled_from(
        ["write", "write", "delete", "show", "show", "apply", "apply", "again", "read"]
    ),
    max_size=12,
)
_damages = st.sampled_from(["none", "value", "lost", "old"])


def _happen(world: World, acts: list[str]) -> None:
    does: dict[str, Callable[[], None]] = {
        "write": lambda: world.write(deletes=False),
        "delete": lambda: world.write(deletes=True),
        "show": world.show,
        "apply": world.apply,
        "again": lambda: world.again(3),
        "read": world.read_again,
    }
    for act in acts:
        does[act]()


def _damage(world: World, damage: str) -> None:
    version, row = world.view
    if damage == "value":
        world.view = version, 7
    elif damage == "lost":
        world.view = version, None
    elif damage == "old" and world.applied > 1:
        world.view = world.log[0][0], 8
    del row


def _judged(world: World, parts: tuple[list[str], ...], *, settles: bool = True) -> KeyVerdict:
    """Carries out the steps of the rule, with anything happening in between."""
    first = world.held()
    _happen(world, parts[0])
    if settles:
        world.show()
    _happen(world, parts[1])
    row, end = world.row(), world.end
    _happen(world, parts[2])
    world.catch_up(end)
    _happen(world, parts[3])
    return judge(first, document(row), world.held(), seen=settles)


@settings(max_examples=examples(600), deadline=None)
@given(_acts, st.tuples(_acts, _acts, _acts, _acts), st.booleans())
def test_a_view_that_is_right_is_never_told_as_wrong(
    before: list[str], parts: tuple[list[str], ...], settles: bool
) -> None:
    world = World()
    _happen(world, before)

    verdict = _judged(world, parts, settles=settles)

    event(verdict)
    assert verdict in {KeyVerdict.EQUAL, KeyVerdict.MOVING}


@settings(max_examples=examples(300), deadline=None)
@given(_acts, _damages)
def test_a_view_that_is_wrong_is_told_as_such_once_its_row_holds_still(
    before: list[str], damage: str
) -> None:
    world = World()
    _happen(world, before)
    world.show()
    world.catch_up(world.end)
    right = world.view[1]
    _damage(world, damage)

    verdict = _judged(world, ([], [], [], []))

    wrong = world.view[1] != right
    event(f"{damage}: {verdict}")
    assert wrong == (verdict not in {KeyVerdict.EQUAL, KeyVerdict.MOVING})
    if wrong:
        expected = (
            KeyVerdict.EXTRA
            if right is None
            else KeyVerdict.MISSING
            if world.view[1] is None
            else KeyVerdict.DIFFERENT
        )
        assert expected == verdict


@settings(max_examples=examples(300), deadline=None)
@given(_acts, st.tuples(_acts, _acts, _acts, _acts))
def test_what_is_told_as_equal_was_equal_to_the_source_at_the_snapshot(
    before: list[str], parts: tuple[list[str], ...]
) -> None:
    """Whatever damage there is: a view is not told as equal unless it had what the source had."""
    world = World()
    _happen(world, before)
    _damage(world, "value")
    first = world.held()
    _happen(world, parts[0])
    world.show()
    row, end = world.row(), world.end
    _happen(world, parts[2])
    world.catch_up(end)
    second = world.held()

    verdict = judge(first, document(row), second)

    shown = {document(row) and document(row)["row"]}
    had = {(held.documents[0]["row"] if held.documents else None) for held in (first, second)}
    assert (verdict is not KeyVerdict.EQUAL) or bool(shown & had)


def test_without_waiting_for_open_transactions_an_early_view_would_raise_an_alarm() -> None:
    """Why step 2 is there: a view may show what the source does not show to others yet."""
    world = World()
    world.write(deletes=False)
    world.apply()
    first = world.held()

    assert judge(first, document(world.row()), world.held()) is KeyVerdict.EXTRA
    assert judge(first, document(world.row()), world.held(), seen=False) is KeyVerdict.MOVING


def test_two_rows_of_one_key_are_told_apart_from_one() -> None:
    row = {"row": 1}
    doubled = StoredKey(8, (row, row))

    assert judge(doubled, row, doubled) is KeyVerdict.DUPLICATED
    assert judge(doubled, None, doubled) is KeyVerdict.EXTRA
    assert judge(StoredKey(8, (row,)), row, StoredKey(8, (row,))) is KeyVerdict.EQUAL
