"""SQL over the warehouse's views without a JVM.

Delta tables are read by deltalake's DataFusion, which also reads deletion vectors. Every view is
registered under its name; a statement that would change anything is refused before it runs.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, ClassVar

from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

# names of DataFusion's plan nodes that do more than read
_CHANGES = re.compile(
    r"^\s*(Dml|CopyTo|Drop\w*|Create\w*|SetVariable|Transaction\w*|Prepare|Execute|Deallocate)\b",
    re.MULTILINE,
)
# EXPLAIN would run what follows ANALYZE, so a statement must start as a query does
_QUERY = re.compile(
    r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:select|with|values|table|describe)\b",
    re.IGNORECASE | re.DOTALL,
)
_READ_ONLY_HINT = "views are derived: change the source and they follow"
_NOT_FOUND = re.compile(r"table '(?:\w+\.)*(\w+)' not found")


class QueryError(HeadwaterError):
    """The statement cannot be answered."""

    code: ClassVar[str] = "HW-Q001"
    exit_code: ClassVar[int] = 2


class ReadOnlyError(QueryError):
    """The statement would change something; views change only by the log."""

    code = "HW-Q002"


class NoViewsError(QueryError):
    """There is nothing to query yet."""

    code = "HW-Q003"


def view_tables(tables: Path) -> dict[str, Path]:
    """Returns the folder of each view's Delta table by the view's name."""
    found = sorted(tables.glob("*/_delta_log")) if tables.is_dir() else []
    # a name with a dot belongs to a view's bookkeeping, not to a view
    return {log.parent.name: log.parent for log in found if "." not in log.parent.name}


def run(sql: str, tables: Path) -> pa.Table:
    """Answers one SQL statement over the current version of every view.

    Args:
        sql: A SELECT in DataFusion's dialect, close to Postgres'.
        tables: Folder with one Delta table per view.

    Raises:
        NoViewsError: No view has been built yet.
        ReadOnlyError: The statement is not a query.
        QueryError: The statement is wrong; the nearest view is named if one is not found.
    """
    import pyarrow as pa  # noqa: PLC0415  # a second of import that no other command waits for
    from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    views = view_tables(tables)
    if not views:
        hint = "headwater up (or headwater demo) builds them"
        raise NoViewsError("no view has a table yet", detail=str(tables), hint=hint)
    if not _QUERY.match(sql):
        raise ReadOnlyError("only queries are answered", hint=_READ_ONLY_HINT)
    engine = QueryBuilder()
    for name, folder in views.items():
        engine = engine.register(name, DeltaTable(folder))
    try:
        plan = pa.table(engine.execute(f"EXPLAIN {sql}").read_all())
        if _CHANGES.search(str(plan["plan"][0])):
            raise ReadOnlyError("only queries are answered", hint=_READ_ONLY_HINT)
        return pa.table(engine.execute(sql).read_all())
    except DeltaError as error:
        raise _explained(str(error), views) from None


def _explained(text: str, views: dict[str, Path]) -> QueryError:
    missing = _NOT_FOUND.search(text)
    if missing is None:
        return QueryError("the statement cannot be answered", detail=text)
    near = difflib.get_close_matches(missing[1], views, n=1)
    hint = f"did you mean {near[0]}?" if near else "views: " + ", ".join(views)
    return QueryError(f"no view is named {missing[1]}", hint=hint)
