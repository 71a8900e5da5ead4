"""How far a version is filled, as the source database keeps it."""

from __future__ import annotations

from projections.versions.version import FillProgress, replayed_of_json, replayed_to_json

FILLED = FillProgress({("t", 0): 7}, {"part": 2}, 5, 1.5, 0.5, (3, "files"), 2)


def test_progress_is_read_as_it_was_noted() -> None:
    assert FILLED == replayed_of_json(replayed_to_json(FILLED))


def test_a_version_that_an_earlier_release_filled_from_its_topic_begins_again() -> None:
    """The copy that it would resume is gone, and offsets in the copy are none of the archive's."""
    noted = {**replayed_to_json(FILLED), "archive": None, "until": 1_790_000_000.0}

    assert FillProgress({}, None, 5, 1.5, 0.5) == replayed_of_json(noted)
