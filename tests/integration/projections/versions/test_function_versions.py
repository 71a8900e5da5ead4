"""What is kept of functions: there before a version names it, and gone when none does."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from cdc.postgres import own_schema
from headwater.platform.platform import Platform
from headwater.project.project import open_project
from projections.definition.codec import encoded
from projections.definition.derived.function_source import digest_of
from projections.definition.derived.view_function import ViewFunction, digest_in
from projections.definition.diff import DefinitionChangeKind
from projections.definition.registry import load
from projections.versions import derived as versions_derived
from projections.versions import function_store, registry
from projections.versions.function_store import StoredFunction
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headwater.platform.view_catalog import KeptViews
    from projections.definition.views import DerivedView

pytestmark = pytest.mark.integration

VIEWS = """
from headwater import source, view
{first}
shop = source("shop", tables=["public.orders"])
view.mirror("orders", shop.orders)


@view(keys=["id"])
def {name}(orders):
    return orders.limit({limit})
"""


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        own_schema.ensure(connection)
        yield connection


def declared(folder: Path, limit: int, first: str = "", name: str = "least") -> DerivedView:
    module = folder / f"{name}.py"
    module.write_text(VIEWS.format(limit=limit, first=first, name=name))
    return load(module).derived[name]


def noted(connection: psycopg.Connection[Any], view: DerivedView, folder: Path) -> dict[str, str]:
    with function_store.noting(connection, "shop", folder, [view]):
        return registry.register(connection, "shop", [view])


def texts(connection: psycopg.Connection[Any]) -> list[str]:
    return [each.definition["text"] for each in registry.read(connection, "shop")]


def digest(view: DerivedView) -> str:
    found = digest_in(view.text)
    assert found is not None
    return found


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_a_view_goes_on_by_the_function_that_was_noted(
    source: psycopg.Connection[Any], tmp_path: Path
) -> None:
    folder = tmp_path / "functions"
    first = declared(tmp_path, 1)
    assert {} == noted(source, first, folder)
    assert {} == noted(source, declared(tmp_path, 1, "import os\n# of no account"), folder)

    second = declared(tmp_path, 2)
    for view in (second, declared(tmp_path, 3), second):
        assert {"least": "its function"} == noted(source, view, folder)
        (kept,) = versions_derived.maintained(source, "shop", [view], folder)
        assert isinstance(kept.view.function, StoredFunction)
        assert digest(first) == kept.view.function.digest
        assert first.fingerprint == kept.view.fingerprint
    assert {f"{digest(first)}.py"} == files(folder)

    with function_store.noting(source, "shop", folder, [second]):
        registry.add(source, "shop", second, VersionState.HELD)
    kept_by = {
        k.view.name: k.view for k in versions_derived.maintained(source, "shop", [second], folder)
    }
    assert second.function is kept_by["least.v2"].function
    assert {f"{digest(first)}.py", f"{digest(second)}.py"} == files(folder)
    # changed back: the held one is the one that is found in its file then
    assert {} == noted(source, declared(tmp_path, 1), folder)
    again = {
        k.view.name: k.view for k in versions_derived.maintained(source, "shop", [first], folder)
    }
    assert first.function is again["least"].function
    assert isinstance(again["least.v2"].function, StoredFunction)

    registry.move(source, "shop", "least.v2", VersionState.DROPPED, VersionState)
    function_store.tidy(source, folder)
    assert {f"{digest(first)}.py"} == files(folder)


def test_what_an_earlier_release_has_noted_is_noted_anew_where_its_module_is_the_same(
    source: psycopg.Connection[Any], tmp_path: Path
) -> None:
    folder, view = tmp_path / "functions", declared(tmp_path, 1)
    assert isinstance(view.function, ViewFunction)
    before = {**encoded(view), "text": view.function.former}
    for state in (VersionState.CURRENT, VersionState.FORMER, VersionState.HELD):
        registry.add(source, "shop", view, state)
    other = {**before, "text": "0" * 64}
    for place, document in (("least", before), ("least.v2", before), ("least.v3", other)):
        source.execute(
            "UPDATE headwater.view_versions SET definition = %s WHERE place = %s",
            (Jsonb(document), place),
        )
    (current, *_) = registry.read(source, "shop")
    assert DefinitionChangeKind.NONE is registry.changed(source, current, view).kind

    assert {} == noted(source, view, folder)

    assert [view.text, view.text, "0" * 64] == texts(source)
    assert {f"{digest(view)}.py"} == files(folder)
    kept = versions_derived.maintained(source, "shop", [view], folder)
    assert all(each.view.function is view.function for each in kept)


def test_an_earlier_release_with_another_module_is_followed_in_place(
    source: psycopg.Connection[Any], tmp_path: Path
) -> None:
    folder, view = tmp_path / "functions", declared(tmp_path, 1)
    registry.add(source, "shop", view, VersionState.CURRENT)
    source.execute(
        "UPDATE headwater.view_versions SET definition = jsonb_set(definition, '{text}', '\"0\"')"
    )

    assert {} == noted(source, view, folder)

    assert [view.text] == texts(source)
    assert {f"{digest(view)}.py"} == files(folder)


def test_a_function_that_cannot_be_kept_is_followed_in_place(
    source: psycopg.Connection[Any], tmp_path: Path
) -> None:
    (tmp_path / "helpers.py").touch()
    folder, imports = tmp_path / "functions", "from helpers import *"
    assert {} == noted(source, declared(tmp_path, 1, imports), folder)
    second = declared(tmp_path, 2, imports)
    (version,) = registry.read(source, "shop")
    change = registry.changed(source, version, second)
    assert (DefinitionChangeKind.IN_PLACE, True) == (change.kind, change.rows)

    assert {} == noted(source, second, folder)
    assert not folder.exists()
    (kept,) = versions_derived.maintained(source, "shop", [second], folder)
    assert second.function is kept.view.function
    # and one that can be from now on is
    third = declared(tmp_path, 2)
    assert {} == noted(source, third, folder)
    assert [third.text] == texts(source)
    assert {f"{digest(third)}.py"} == files(folder)


def test_the_plan_tells_a_version_to_be_built_from_rows_that_change_in_place(
    source: psycopg.Connection[Any], database: str, tmp_path: Path
) -> None:
    (tmp_path / "helpers.py").touch()
    settings = tmp_path / "headwater.toml"
    settings.write_text(
        f'[project]\nname = "shop"\nviews = "least.py"\n[source.shop]\ndsn = "{database}"\n'
    )

    def views(limit: int, first: str = "") -> KeptViews:
        declared(tmp_path, limit, first)
        return Platform(open_project(settings, home=tmp_path / "home"), settings).views

    def planned(limit: int, first: str = "") -> list[tuple[str | None, str | None]]:
        return [(each.want, each.hint) for each in views(limit, first).to_rebuild()]

    views(1).register()
    assert [] == planned(1, "import os")
    assert [("its function", "headwater view rebuild least")] == planned(2)
    assert ["its function, or other code of its module"] == [
        want for want, _ in planned(1, "from helpers import *")
    ]
    # nothing can be kept of one that was never told apart
    source.execute("UPDATE headwater.view_versions SET state = 'dropped'")
    views(1, "from helpers import *").register()
    assert [] == list((tmp_path / "home" / "functions").iterdir())
    ((want, hint),) = planned(2, "from helpers import *")
    assert "its function, or other code of its module" == want
    assert "computed in its place when the job starts again" in str(hint)
    assert "from helpers import *" in str(hint)
    views(2, "from helpers import *").register()
    assert [] == planned(2, "from helpers import *")


def test_whoever_is_killed_leaves_nothing_that_a_version_lacks(
    source: psycopg.Connection[Any], tmp_path: Path
) -> None:
    folder, first, second = tmp_path / "functions", declared(tmp_path, 1), declared(tmp_path, 2)
    noted(source, first, folder)

    def killed() -> None:
        with function_store.noting(source, "shop", folder, [second]):
            registry.add(source, "shop", second)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert [first.text] == texts(source)
    for torn in (f"{digest(second)}.tmp", f".{digest(second)}.py.0a1b2c3d.tmp"):
        (folder / torn).write_text("def")
    (folder / "of mine.txt").touch()

    noted(source, first, folder)
    assert {f"{digest(first)}.py", "of mine.txt"} == files(folder)
    # what was altered is put right by whoever declares it so
    (folder / f"{digest(first)}.py").write_text("altered = 1")
    noted(source, first, folder)
    assert digest(first) == digest_of((folder / f"{digest(first)}.py").read_text())


def test_versions_that_are_made_and_dropped_at_one_time_have_their_functions(
    source: psycopg.Connection[Any], database: str, tmp_path: Path
) -> None:
    """Each is made by one of two functions and dropped, over and over."""
    folder = tmp_path / "functions"
    views = {name: [declared(tmp_path, n, name=name) for n in (1, 2)] for name in ("a", "b")}
    wrong: list[str] = []

    def worked(name: str, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311  # which one is no secret
        try:
            with psycopg.connect(database, autocommit=True) as connection:
                for _ in range(40):
                    view = chance.choice(views[name])
                    with function_store.noting(connection, name, folder, [view]):
                        number = registry.add(connection, name, view)
                    place = name if number == 1 else f"{name}.v{number}"
                    file = folder / f"{digest(view)}.py"
                    if not file.exists():
                        wrong.append(place)
                    registry.move(connection, name, place, VersionState.DROPPED, list(VersionState))
                    function_store.tidy(connection, folder)
        except (OSError, psycopg.Error) as error:
            wrong.append(repr(error))

    threads = [
        threading.Thread(target=worked, args=(name, seed)) for seed, name in enumerate("aabb")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [] == wrong
    assert set() == files(folder)
