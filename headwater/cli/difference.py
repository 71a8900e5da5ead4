"""`headwater view diff`: the changes of a view's rows between two times."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundation.suggestion import did_you_mean
from headwater.cli.options import Json, ProjectOptions
from headwater.cli.output import escape, print_boundaries, print_json, print_rows, stderr
from headwater.errors import UsageError
from headwater.reading import sql
from headwater.reading.time_travel import FormerViews
from projections.definition.columns import (
    BEGUN_AT_COLUMN,
    BEGUN_COLUMN,
    HISTORY_COLUMNS,
    ROW_ID_COLUMN,
    VERSION_COLUMN,
)
from projections.definition.views import MirrorView

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headwater.project.project import Project
    from projections.stores.delta.table_diff import TableDifference

_EXAMPLES = 10
_CELL = 60


def diff(
    name: Annotated[str, typer.Argument(help="The view.")],
    earlier: Annotated[
        str, typer.Argument(help="A position, a time, or the number of a published version.")
    ],
    later: Annotated[
        str | None, typer.Argument(help="The second one; default: the newest.")
    ] = None,
    *,
    examples: Annotated[
        int, typer.Option("--examples", min=0, help="Number of rows of each kind to show.")
    ] = _EXAMPLES,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Compare a view's table at two times: rows added, removed and changed.

    Reads only the files written in between; no server needs to run. Published versions can be
    compared for an hour (headwater view versions). For an earlier time, the view is computed from
    the whole archive, and the source must be available.

    Example: headwater view diff orders 2026-11-21T14:05:00Z
    """
    platform = options.platform(name)
    project = platform.project
    tables = project.home.root / "tables"
    views = sql.view_tables(tables)
    from projections.stores.delta.table_diff import ComparedVersion, compare_sides  # noqa: PLC0415  # slow to load

    with FormerViews(platform) as former:
        try:
            first, second = (_table(tables, views, name, each) for each in (earlier, later))
        except sql.AsOfError:
            if name not in views or sql.moment(earlier) is None:
                raise
            place, *versions = former.versions(earlier, later, name)
            first, second = ((place, version) for version in versions)
        else:
            for each in filter(None, (earlier, later)):
                with suppress(sql.AsOfError):  # it may have been removed meanwhile
                    print_boundaries(sql.boundaries_as_of(tables, each, frozenset([name])))
        keys = _keys(project, views[name], name)
        difference = compare_sides(
            ComparedVersion(*first), ComparedVersion(*second), keys, examples_max=examples
        )
    if as_json:
        print_json(_document(name, [first[1], second[1]], difference))
        return
    show(difference)


def _table(
    tables: Path, views: Mapping[str, Path], name: str, as_of: str | None
) -> tuple[Path, int]:
    table = (
        sql.readable(tables, views, as_of, frozenset([name])).get(name) if name in views else None
    )
    if table is None or table.version is None:
        there = "views: " + (", ".join(views) or "none")
        hint = there if name in views else did_you_mean(name, views, there)
        raise UsageError(f"view {name[:80]} was not published then", hint=hint)
    return table.path, table.version


def _keys(project: Project, path: Path, name: str) -> tuple[str, ...]:
    """Columns that identify a row; empty where whole rows are compared."""
    from deltalake import DeltaTable  # noqa: PLC0415  # a second of import

    columns = {field.name for field in DeltaTable(str(path)).schema().fields}
    if derived := project.declarations.derived.get(name):
        # readers may see a version with other keys than those that are declared by now
        return derived.keys if columns >= {*derived.keys} else ()
    if ROW_ID_COLUMN in columns:
        return (ROW_ID_COLUMN,)
    view = project.declarations.views.get(name)
    if isinstance(view, MirrorView) and view.history is not None:
        return (*view.keys, *HISTORY_COLUMNS[:1], HISTORY_COLUMNS[3]) if view.keys else ()
    deleted = path.with_name(f"{path.name}.deleted")
    if not DeltaTable.is_deltatable(str(deleted)):
        return ()
    remembered = [field.name for field in DeltaTable(str(deleted)).schema().fields]
    own = {VERSION_COLUMN, BEGUN_COLUMN, BEGUN_AT_COLUMN}
    return tuple(column for column in remembered if column not in own)


def _document(name: str, versions: list[int], difference: TableDifference) -> dict[str, Any]:
    return {
        "view": name,
        "table_versions": versions,
        "keys": difference.keys,
        "appeared": difference.appeared,
        "gone": difference.gone,
        "changed": difference.changed,
        "by_column": dict(difference.by_column.most_common()),
        "columns_added": difference.columns_added,
        "columns_gone": difference.columns_gone,
        "examples": {
            "appeared": difference.examples_appeared,
            "gone": difference.examples_gone,
            "changed": [
                {"key": each.key, "values": {n: list(v) for n, v in each.values.items()}}
                for each in difference.examples_changed
            ],
        },
    }


def show(difference: TableDifference) -> None:
    """Prints a difference as tables."""
    counts = {
        "appeared": difference.appeared,
        "gone": difference.gone,
        "changed": difference.changed,
    }
    print_rows([counts], as_json=False, title="rows", empty="")
    for label, names in (("new", difference.columns_added), ("gone", difference.columns_gone)):
        if names:
            stderr.print(f"columns {label}: {escape(', '.join(names))}")
    if difference.by_column:
        stderr.print()
        columns = [{"column": c, "rows": n} for c, n in difference.by_column.most_common()]
        print_rows(columns, as_json=False, title="changed columns", empty="")
    rows: list[Mapping[str, object]] = [
        *({"row": _text(key), "change": "appeared"} for key in difference.examples_appeared),
        *({"row": _text(key), "change": "gone"} for key in difference.examples_gone),
        *(
            {"row": _text(each.key), "change": f"{column}: {_cell(was)} -> {_cell(now)}"}
            for each in difference.examples_changed
            for column, (was, now) in each.values.items()
        ),
    ]
    if rows:
        stderr.print()
        print_rows(rows, as_json=False, title="such as", empty="")


def _text(key: tuple[object, ...]) -> str:
    return ", ".join(map(_cell, key))


def _cell(value: object) -> str:
    text = "NULL" if value is None else " ".join(str(value).split())
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
