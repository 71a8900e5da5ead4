"""Values that only one person had: none that others have, in any column, or as a part of one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.lsn import Lsn
from cdc.table import TableName
from projections.erasure.archive import ArchivedTopic, Through
from projections.erasure.canaries import canaries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

OWN = {
    "id": 7,
    "name": "Zephyrine Quillfeather",
    "city": "Windermere",
    "likes": '{"theme": "dark"}',
    "note": "50% (a|b)* [x] \\ done",
    "short": "abc",
}


class Archived(ArchivedTopic):
    """An archive that has one person's record, and nobody else's: their rows came by no record."""

    def rows(self, *_: Any, later: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        if not later:
            yield json.dumps({"id": 7}), OWN

    def values_elsewhere(self, *_: Any) -> frozenset[str]:
        return frozenset()


def test_what_others_have_is_nobodys_alone(database: str, tmp_path: Path) -> None:
    topics, texts = [Archived(tmp_path, "shop.public.people")], frozenset({'{"id":7}'})
    through, table = Through(1, Lsn(100)), TableName("public", "people")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE people (id int, name text, city varchar(20), likes jsonb, note text)"
        )
        every = canaries(connection, table, topics, texts, through)
        connection.execute(
            "INSERT INTO people VALUES (8, 'Petronella Windermere-Smith', NULL,"
            """ '{"theme": "dark"}', '50% (a|b)')"""
        )
        left = canaries(connection, table, topics, texts, through)
        connection.execute("INSERT INTO people (note) VALUES (%s)", ["> " + str(OWN["note"])])

        assert {OWN[name] for name in ("name", "city", "likes", "note")} == every
        assert {OWN["name"], OWN["note"]} == left
        assert {OWN["name"]} == canaries(connection, table, topics, texts, through)
