"""`headwater search`: full text over a view, as its readers see it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from headwater.cli import token
from headwater.cli.options import TIMEOUT_S, AtLeast, Json, ProjectOptions, Timeout
from headwater.cli.output import counted, escape, print_json, print_rows, stderr, stdout, visible
from headwater.errors import UsageError
from projections.definition.views import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from projections.stores.opensearch.searcher import (
        FacetValue,
        SearchAnswer,
        SearchHit,
        Suggestion,
    )

# characters of a private range: no text of a row contains them
_MARKS = ("\ue000", "\ue001")
_MARKED = "bold yellow"
_CELL = 60
_HTML = ("<em>", "</em>")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("search")(search_view)


def search_view(
    view: Annotated[str, typer.Argument(help="The view.")],
    text: Annotated[str, typer.Argument(help="Words to find; without any, every row.")] = "",
    *,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", "-w", help="Such as status=paid, total>=10, 'note is null'."),
    ] = None,
    facet: Annotated[
        list[str] | None,
        typer.Option("--facet", help="Count values of this field; repeatable."),
    ] = None,
    sort: Annotated[
        list[str] | None,
        typer.Option("--sort", help="Sort by this field, or field:desc; repeatable."),
    ] = None,
    size: Annotated[int, typer.Option("--size", "-n", help="Number of hits.")] = 10,
    start: Annotated[int, typer.Option("--from", help="Number of hits to skip.")] = 0,
    fields: Annotated[
        list[str] | None,
        typer.Option("--in", help="Search for words only in this field; repeatable."),
    ] = None,
    every_word: Annotated[
        bool, typer.Option("--every-word", help="Require all words instead of some.")
    ] = False,
    syntax: Annotated[
        bool, typer.Option("--syntax", help='Parse the text as a query: red -"arm chair" tab*')
    ] = False,
    suggest: Annotated[
        str | None,
        typer.Option("--suggest", help="Suggest values by the beginning of a word."),
    ] = None,
    at_least: AtLeast = None,
    timeout_s: Timeout = TIMEOUT_S,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Search a view for words, through its alias in OpenSearch; best hits first.

    Example: headwater search products "red chair" --where "price<100" --facet category
    """
    from projections.stores.opensearch.query import SearchQuery  # noqa: PLC0415
    from projections.stores.opensearch.searcher import Searcher, conditions  # noqa: PLC0415

    if suggest is not None and (text or facet or sort):
        raise UsageError("--suggest takes --where, --in and --size only")
    query = SearchQuery(
        suggest or text,
        conditions(where or ()),
        tuple(facet or ()),
        tuple(sort or ()),
        size,
        start,
        tuple(fields or ()),
        every_word,
        syntax,
        _HTML if as_json else _MARKS,
    )
    platform = options.platform(view)
    reached = token.reach(platform, at_least, view, Store.SEARCH, timeout_s)
    with Searcher(platform.endpoints.search_url) as searcher:
        if reached:
            searcher.refresh(view)
        if suggest is not None:
            _show_suggestions(searcher.suggest(view, query), as_json=as_json)
        else:
            _show(searcher.search(view, query), start, as_json=as_json)


def _show_suggestions(suggestions: Sequence[Suggestion], *, as_json: bool) -> None:
    rows = [{"field": each.field, "value": each.value, "rows": each.rows} for each in suggestions]
    print_rows(rows, as_json=as_json, title="", empty="nothing begins like that")


def _show(answer: SearchAnswer, start: int, *, as_json: bool) -> None:
    if as_json:
        print_json(_document(answer))
        return
    console = stdout()
    for place, hit in enumerate(answer.hits, start + 1):
        console.print(_heading(place, hit), soft_wrap=True)
        for name, pieces in hit.highlights.items():
            for piece in pieces:
                console.print(Text("   ").append(f"{name}: ", "dim").append_text(_marked(piece)))
    for name, values in answer.facets.items():
        _show_facet(name, values)
    hit_range = f"{start + 1} to {start + len(answer.hits)} of " if answer.hits else ""
    stderr.print(f"[dim]{hit_range}{counted(answer.total, 'row')}, {answer.took_ms} ms[/]")
    if answer.did_you_mean is not None:
        stderr.print(f"did you mean: {escape(answer.did_you_mean)}")


def _heading(place: int, hit: SearchHit) -> Text:
    score = f"  {hit.score:.2f}" if hit.score is not None else ""
    line = Text(f"{place}. ").append(visible(hit.key), "bold").append(score, "dim")
    for name, value in hit.row.items():
        if value is not None and name not in hit.highlights and str(value) != hit.key:
            line.append(f"  {name}=", "dim").append(_short(value))
    return line


def _show_facet(name: str, values: Sequence[FacetValue]) -> None:
    rows = [{name: each.value, "rows": each.rows} for each in values]
    print_rows(rows, as_json=False, title="", empty=f"{name}: no values", of_views=True)


def _marked(piece: str) -> Text:
    text = Text()
    for part, style in _parts(visible(" ".join(piece.split()))):
        text.append(part, style)
    return text


def _parts(piece: str) -> Iterator[tuple[str, str]]:
    before, _, rest = piece.partition(_MARKS[0])
    yield before, ""
    while rest:
        marked, _, rest = rest.partition(_MARKS[1])
        yield marked, _MARKED
        between, _, rest = rest.partition(_MARKS[0])
        yield between, ""


def _short(value: object) -> str:
    text = visible(" ".join((value if isinstance(value, str) else json.dumps(value)).split()))
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def _document(answer: SearchAnswer) -> Mapping[str, Any]:
    return {
        "total": answer.total,
        "took_ms": answer.took_ms,
        "did_you_mean": answer.did_you_mean,
        "hits": [
            {"key": hit.key, "score": hit.score, "row": hit.row, "highlights": hit.highlights}
            for hit in answer.hits
        ],
        "facets": {
            name: [{"value": each.value, "rows": each.rows} for each in values]
            for name, values in answer.facets.items()
        },
    }
