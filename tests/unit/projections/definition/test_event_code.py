"""A digest tells whether two processes have imported the same classes of events."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from projections.definition.event_code import digest_of

if TYPE_CHECKING:
    from pathlib import Path

DECLARED = """
from dataclasses import dataclass

from eventstore.serialization.registry import EventTypes

types = EventTypes()
KINDS = 5


@types.event("order.placed", version=2)
@dataclass(frozen=True)
class OrderPlaced:
    order: str
    kind: str = "new"

    @property
    def known(self) -> bool:
        return self.kind in {"new", "again", "other"}


@types.upcaster("order.placed", 1)
def with_kind(data):
    return data | {"kind": "old"}
"""
EDITS = (
    ('kind: str = "new"', 'kind: str = "later"'),
    ("    order: str\n", "    order: int\n"),
    ('{"kind": "old"}', '{"kind": "older"}'),
    ('"again", "other"', '"again"'),
)


USED = "import msgspec; msgspec.convert({'order': '1'}, of_orders.OrderPlaced);"


def digest(folder: Path, text: str, seed: int, used: str = "") -> str:
    """What a new process says of a module."""
    (folder / "of_orders.py").write_text(text, encoding="utf-8")
    program = (
        f"import of_orders; {used} from projections.definition.event_rows import EventForm;"
        "print(EventForm(of_orders.types, ['order.placed']).code)"
    )
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONHASHSEED": str(seed),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_same_module_has_the_same_digest_in_every_process(tmp_path: Path) -> None:
    first = digest(tmp_path, DECLARED, 1)

    assert len(first) == 64
    assert first == digest(tmp_path, "# edited\n" + DECLARED, 2)
    assert first == digest(tmp_path, DECLARED, 3, USED)  # msgspec keeps a cache in the class


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit[1].strip())
def test_an_edit_of_a_class_or_an_upcaster_changes_the_digest(
    edit: tuple[str, str], tmp_path: Path
) -> None:
    assert digest(tmp_path, DECLARED, 1) != digest(tmp_path, DECLARED.replace(*edit), 1)


def test_a_module_that_is_not_imported_has_a_digest() -> None:
    class Strange:
        __module__ = "nowhere.at_all"

    assert digest_of([Strange]) != digest_of([digest_of])
