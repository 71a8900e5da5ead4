"""Documents of two versions are matched on disk as they would be in memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.stores.delta.table_diff import TableDifference
from projections.versions import document_match
from projections.versions.document_match import VersionDocuments, match_keys, match_rows

Row = tuple[int, int | None, str]
VALUES = st.sampled_from([None, 0, 1]), st.sampled_from(["", "a", "é"])
KEYED = st.dictionaries(st.integers(0, 12), st.tuples(*VALUES), max_size=12)
LIKE = st.lists(st.tuples(st.integers(0, 2), *VALUES), max_size=12)
EXAMPLES_MAX = 3


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_match, "_KEPT_ROWS", 4)


def documents(rows: list[Row]) -> VersionDocuments:
    given = [{"id": key, "n": number, "s": text, "own": id(rows)} for key, number, text in rows]
    return VersionDocuments(lambda: iter(given), lambda: iter(given))


@given(KEYED, KEYED)
def test_documents_with_keys(
    before: dict[int, tuple[int | None, str]], after: dict[int, tuple[int | None, str]]
) -> None:
    found = TableDifference(("id",))
    sides = [
        documents([(key, *values) for key, values in each.items()]) for each in (before, after)
    ]
    match_keys(found, ("n", "s"), sides[0], sides[1], EXAMPLES_MAX)

    changed = {key for key in before.keys() & after.keys() if before[key] != after[key]}
    assert len(before.keys() - after.keys()) == found.gone
    assert len(after.keys() - before.keys()) == found.appeared
    assert len(changed) == found.changed
    columns = Counter(
        name
        for key in changed
        for name, was, now in zip("ns", before[key], after[key], strict=True)
        if was != now
    )
    assert columns == found.by_column
    for examples, keys in (
        (found.examples_gone, before.keys() - after.keys()),
        (found.examples_appeared, after.keys() - before.keys()),
    ):
        assert min(EXAMPLES_MAX, len(keys)) == len(examples)
        assert {(str(key),) for key in keys} >= {*examples}
    assert min(EXAMPLES_MAX, len(changed)) == len(found.examples_changed)
    for example in found.examples_changed:
        key = int(str(example.key[0]))
        both = zip("ns", before[key], after[key], strict=True)
        assert {name: (was, now) for name, was, now in both if was != now} == example.values


@given(LIKE, LIKE)
def test_documents_without_keys_as_often_as_they_occur(before: list[Row], after: list[Row]) -> None:
    found = TableDifference(())
    match_rows(found, ("id", "n", "s"), documents(before), documents(after), EXAMPLES_MAX)

    gone, appeared = Counter(before) - Counter(after), Counter(after) - Counter(before)
    assert gone.total() == found.gone
    assert appeared.total() == found.appeared
    assert min(EXAMPLES_MAX, appeared.total()) == len(found.examples_appeared)
    examples: Counter[Any] = Counter(found.examples_appeared)
    assert appeared >= examples
