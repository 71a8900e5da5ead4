"""The module of views that `headwater init` writes: short for few tables, in groups for many."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from headwater.project.spelling import literal, printable, reference, variable, view_names
from projections.definition.views import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cdc.table import TableName
    from headwater.project.survey import Choice, DatabaseSurvey

_MANY: Final = 24
"""Tables from which on each is written once, in groups."""

_GROUP_MIN: Final = 3
_LINE_MAX: Final = 100
_COMMENT_MAX: Final = 90
_NAMED_MAX: Final = 6
"""Tables that are named of those that are left out for one reason; the preview names all."""


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """A module that declarations are added to.

    Attributes:
        views: Names of the views that it declares.
        bound: Names that it gives to anything; they keep their meaning.
    """

    views: frozenset[str] = frozenset()
    bound: frozenset[str] = frozenset()

    def free(self, name: str, source: str) -> str:
        """Returns a name that the module does not use."""
        if name not in self.bound:
            return name
        prefix = source.upper() if name.isupper() else source
        numbered = (f"{prefix}_{name}_{number}" for number in range(2, len(self.bound) + 3))
        return next(each for each in (f"{prefix}_{name}", *numbered) if each not in self.bound)


_WHY: Final = {
    (Store.TABLE,): "Large: in the warehouse alone",
    (Store.TABLE, Store.CACHE): "Search cannot index a column's name",
    (Store.SEARCH, Store.CACHE): "The warehouse cannot have a column's name",
    (Store.CACHE,): "The cache alone can have a column's name",
}
"""Why tables are mirrored to some stores only, by these stores."""

ALONE: Final = ModuleNames()
"""For a module that has no other declarations."""


def views_text(survey: DatabaseSurvey, beside: ModuleNames = ALONE) -> str:
    """Returns the text of a module that declares a source and a mirror of each chosen table.

    Args:
        survey: What is chosen.
        beside: The module that the text is added to.
    """
    chosen = [choice.table for choice in survey.mirrored]
    names = view_names(chosen, survey.source, beside.views)
    name = beside.free(variable(survey.source), survey.source)
    grouped = len(chosen) > _MANY
    parts = _grouped(survey, names, name, beside) if grouped else _plain(survey, names, name)
    heading = _heading(survey) if beside is ALONE else _heading_beside(survey)
    return "\n".join([heading, *parts, *_noted(survey), *_left_out(survey)]).rstrip() + "\n"


def _heading_beside(survey: DatabaseSurvey) -> str:
    return f"# Source {survey.source}.\nfrom headwater import source, view  # noqa: E402\n"


def _heading(survey: DatabaseSurvey) -> str:
    return (
        f'"""What Headwater keeps of `{survey.source}`. `headwater plan` shows what a change here '
        'changes."""\n\n'
        "from headwater import source, view\n"
    )


def _plain(survey: DatabaseSurvey, names: Mapping[TableName, str], source: str) -> list[str]:
    tables = list(names)
    listed = [f"        {literal(str(table))}," for table in tables]
    lines = [*_source(survey, source, "[", listed), ""]
    for heading, to, choices in _by_stores(survey):
        lines.append(f"# {heading}")
        for choice in choices:
            table = reference(source, choice.table, tables)
            lines += _mirror(literal(names[choice.table]), table, to)
        lines.append("")
    return lines


def _grouped(
    survey: DatabaseSurvey, names: Mapping[TableName, str], source: str, beside: ModuleNames
) -> list[str]:
    lines, mirrors, variables = [], [], []
    for heading, to, choices in _by_stores(survey):
        listed = "MIRRORED" if to is None else "_".join(["ONLY_IN", *to]).upper()
        listed = beside.free(listed, survey.source)
        variables.append(listed)
        lines += [f"# {heading}: name of the view, and its table", f"{listed} = {{"]
        for group, tables in _groups([choice.table for choice in choices]):
            lines.append(f"    # {group}")
            lines += [f"    {literal(names[t])}: {literal(str(t))}," for t in tables]
        lines += ["}", ""]
        mirrors += [f"for name, table in {listed}.items():"]
        mirrors += [f"    {line}" for line in _mirror("name", f"{source}[table]", to)]
    every = ", ".join(f"*{name}.values()" for name in variables)
    return [*lines, *_source(survey, source, f"[{every}]"), "", *mirrors, ""]


def _source(survey: DatabaseSurvey, name: str, begin: str, tables: Sequence[str] = ()) -> list[str]:
    extras = ["    eventstore=True,"] if survey.eventstore else []
    if accepted := [literal(str(each.table)) for each in survey.mirrored if each.insert_only]:
        extras += ["    # Postgres refuses UPDATE and DELETE on these while they are captured"]
        extras += ["    insert_only=[", *(f"        {table}," for table in accepted), "    ],"]
    if escaped := [literal(str(each.table)) for each in survey.mirrored if each.escaped_topic]:
        extras += ["    # another table has the topic that their names make in Kafka"]
        extras += ["    escaped_topics=[", *(f"        {table}," for table in escaped), "    ],"]
    short = f"{name} = source({literal(survey.source)}, tables={begin})"
    if not tables and not extras and len(short) <= _LINE_MAX:
        return [short]
    lines = [f"{name} = source(", f"    {literal(survey.source)},"]
    lines += [f"    tables={begin}", *tables, "    ],"] if tables else [f"    tables={begin},"]
    return [*lines, *extras, ")"]


def _by_stores(
    survey: DatabaseSurvey,
) -> Iterable[tuple[str, tuple[str, ...] | None, list[Choice]]]:
    """Choices by where they are mirrored, the usual place first; None stands for all stores."""
    usual = [choice for choice in survey.mirrored if len(choice.to) == len(Store)]
    if usual:
        yield "The latest row of every key, in warehouse, search and cache", None, usual
    for to in sorted({choice.to for choice in survey.mirrored if len(choice.to) < len(Store)}):
        chosen = [choice for choice in survey.mirrored if choice.to == to]
        yield _WHY[to], tuple(map(str, to)), chosen


def _mirror(name: str, table: str, to: Sequence[str] | None) -> list[str]:
    stores = f", to=[{', '.join(map(literal, to))}]" if to else ""
    line = f"view.mirror({name}, {table}{stores})"
    if len(line) <= _LINE_MAX:
        return [line]
    parts = [name, table, *([stores.removeprefix(", ")] if stores else [])]
    return ["view.mirror(", *(f"    {part}," for part in parts), ")"]


def _groups(tables: Sequence[TableName]) -> Iterable[tuple[str, list[TableName]]]:
    """Tables of a schema whose names begin with the same word; then the schema's others."""
    for schema, of_schema in groupby(sorted(tables), key=lambda table: table.schema):
        others: list[TableName] = []
        for word, begun in groupby(of_schema, key=lambda table: table.name.partition("_")[0]):
            alike = list(begun)
            if len(alike) < _GROUP_MIN:
                others += alike
            else:
                yield printable(f"{schema}: {word}"), alike
        if others:
            yield printable(f"{schema}: others"), others


def _noted(survey: DatabaseSurvey) -> list[str]:
    lines: list[str] = []
    for note, choices in survey.by_note():
        if len(choices) == 1:
            lines.append(f"# {printable(f'{choices[0].table} {note}')}")
        else:
            lines += [f"# {len(choices)} tables {printable(note)}:", *_names(choices)]
    return [*lines, ""] if lines else []


def _left_out(survey: DatabaseSurvey) -> list[str]:
    if not survey.left_out:
        return []
    lines = ["# Not mirrored:"]
    for reason, choices in survey.by_reason():
        lines += [f"#   {line}" for line in wrap(f"{printable(reason)}:", _COMMENT_MAX)]
        lines += _names(choices)
    return lines


def _names(choices: Sequence[Choice]) -> list[str]:
    named = [printable(str(choice.table)) for choice in choices[:_NAMED_MAX]]
    more = [f"and {len(choices) - len(named)} more"] if len(choices) > len(named) else []
    return [f"#     {name}" for name in [*named, *more]]
