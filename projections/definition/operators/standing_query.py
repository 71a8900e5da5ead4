"""Standing queries: stored searches that are matched against each new document.

A standing query is a search text whose author wants to be notified of new matches: words that must
all occur, and conditions on fields. It is parsed once and matched against many documents. Each
query therefore names terms such that every matching document has at least one of them (`anchors`),
and a document is compared only with the queries that share a term with it. Lucene's percolator does
the same (its `QueryAnalyzer` chooses, among words that must all occur, the one that is likely to be
the rarest).

    red "arm chair" price<500 -broken | tab* category:tables
"""

from __future__ import annotations

import operator
import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from projections.errors import StandingQueryError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LENGTH_MAX: Final = 1_000
DEPTH_MAX: Final = 20
ANYTHING: Final = "*"
"""The term of every document: the anchor of a query without a word that must occur."""

VALUE_MAX: Final = 64
"""Most characters of a text that is one term; a longer text is compared, but not looked up."""

_WORD: Final = re.compile(r"\w+")
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<compared>(?P<field>[^\W\d]\w*)(?P<sign><=|>=|!=|[:=<>])(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s()|"]+)))
    |(?P<phrase>"[^"]*")
    |(?P<sign_alone>[()|]|-(?=\S))
    |(?P<text>[^\s()|"]+)""",
    re.VERBOSE,
)
_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ":": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_HINT: Final = 'words, "a phrase", begin*, field:value, field>value, -not, this | that, ( )'
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FieldKind(StrEnum):
    """How queries compare a field of a document."""

    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "boolean"
    DATE = "date"
    TIME = "time"
    TEXTS = "list of texts"


@dataclass(frozen=True, slots=True)
class Document:
    """A document as queries see it.

    Attributes:
        words: Words of each text, in order.
        fields: Values by field: numbers, texts, truth values, dates as days and times as
            microseconds since 1970, lists of texts.
    """

    words: tuple[tuple[str, ...], ...]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Words:
    """Words that follow each other in one text; the last may be the beginning of one."""

    words: tuple[str, ...]
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison of a field with a value."""

    field: str
    sign: str
    value: Any


@dataclass(frozen=True, slots=True)
class Joined:
    """Queries that must all hold, or at least one of them."""

    parts: tuple[Query, ...]
    every: bool


@dataclass(frozen=True, slots=True)
class Negated:
    """A query that must not hold."""

    part: Query


@dataclass(frozen=True, slots=True)
class Anything:
    """Every document."""


Query: TypeAlias = Words | Compared | Joined | Negated | Anything


def words_of(text: str) -> tuple[str, ...]:
    """Returns the words of a text: letters, digits and `_`, folded so that case does not matter."""
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def parse(text: str, fields: Mapping[str, FieldKind]) -> Query:
    """Parses a query.

    Args:
        text: The query: words, `"a phrase"`, `begin*`, `field:value` (or `= != < <= > >=`, without
            spaces), `-` before an excluded part, `|` between alternatives, parentheses; `*` alone
            matches every document.
        fields: Fields of the documents that can be compared.

    Raises:
        StandingQueryError: It cannot be parsed, or names a field that the documents do not have.
    """
    if not text.strip() or len(text) > LENGTH_MAX:
        raise _refused("a standing query is empty or too long", f"at most {LENGTH_MAX} characters")
    return _Parser(text, fields).parsed()


def anchors(query: Query) -> frozenset[str]:
    """Returns terms such that every document that the query matches has at least one of them."""
    if isinstance(query, Words):
        whole = query.words[:-1] if query.prefix else query.words
        return frozenset({max(whole, key=_rareness)}) if whole else frozenset({ANYTHING})
    if isinstance(query, Compared):
        term = _term(query.field, query.value) if query.sign in (":", "=") else None
        return frozenset({ANYTHING if term is None else term})
    if isinstance(query, Joined):
        parts = [anchors(part) for part in query.parts]
        return max(parts, key=_worth) if query.every else frozenset().union(*parts)
    return frozenset({ANYTHING})


def needs(query: Query) -> tuple[frozenset[str], bool]:
    """Returns terms that a document must all have for the query to match it.

    Returns:
        The second value is whether the terms suffice, so that the document need not be compared.
    """
    if isinstance(query, Words):
        whole = query.words[:-1] if query.prefix else query.words
        return frozenset(whole), not query.prefix and len(whole) == 1
    if isinstance(query, Compared):
        # never sufficient: one term can stand for two readings of field name and value
        return anchors(query) - {ANYTHING}, False
    if isinstance(query, Joined):
        parts = [needs(part) for part in query.parts]
        if query.every:
            return frozenset().union(*(part for part, _ in parts)), all(each for _, each in parts)
        return parts[0][0].intersection(*(part for part, _ in parts[1:])), False
    return frozenset(), isinstance(query, Anything)


def terms(document: Document) -> frozenset[str]:
    """Returns a document's terms, which select the queries that may match it."""
    result = {word for text in document.words for word in text}
    for field, value in document.fields.items():
        for each in value if isinstance(value, (list, tuple)) else (value,):
            term = _term(field, each)
            if term is not None:
                result.add(term)
    return frozenset(result | {ANYTHING})


def matches(query: Query, document: Document) -> bool:
    """Returns whether a query matches a document.

    No comparison holds for a field without a value.
    """
    if isinstance(query, Words):
        return any(_there(query, text) for text in document.words)
    if isinstance(query, Compared):
        return _holds(query, document.fields.get(query.field))
    if isinstance(query, Joined):
        judge = all if query.every else any
        return judge(matches(part, document) for part in query.parts)
    if isinstance(query, Negated):
        return not matches(query.part, document)
    return True


class QueryParser:
    """Parses queries and caches them: many documents are compared with the same queries.

    Args:
        fields: Fields of the documents that can be compared.
    """

    def __init__(self, fields: Mapping[str, FieldKind]) -> None:
        self._fields = fields
        self._read = lru_cache(100_000)(self._parsed)

    def query(self, text: str | None) -> Query | None:
        """Returns a parsed query; None if it cannot be parsed."""
        parsed = self._read(text)
        return None if isinstance(parsed, StandingQueryError) else parsed

    def refusal(self, text: str | None) -> str | None:
        """Returns why a query cannot be parsed; None if it can."""
        parsed = self._read(text)
        if not isinstance(parsed, StandingQueryError):
            return None
        return f"{parsed.message}: {parsed.detail}" if parsed.detail else parsed.message

    def _parsed(self, text: str | None) -> Query | StandingQueryError:
        try:
            return parse(text or "", self._fields)
        except StandingQueryError as error:
            return error


class _Parser:
    def __init__(self, text: str, fields: Mapping[str, FieldKind]) -> None:
        self._fields = fields
        self._tokens = list(_tokens(text))
        self._place = self._depth = 0

    def parsed(self) -> Query:
        query = self._either()
        if self._place < len(self._tokens):
            raise _unreadable(self._tokens[self._place][0])
        return query

    def _either(self) -> Query:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _refused("a standing query has too many nested parentheses")
        parts = [self._every()]
        while self._takes("|"):
            parts.append(self._every())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Joined(tuple(parts), every=False)

    def _every(self) -> Query:
        parts = [self._one()]
        while self._place < len(self._tokens) and self._tokens[self._place][0] not in ("|", ")"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Joined(tuple(parts), every=True)

    def _one(self) -> Query:
        negated = False
        while self._takes("-"):
            negated = not negated
        query = self._plain()
        return Negated(query) if negated else query

    def _plain(self) -> Query:
        if self._takes("("):
            query = self._either()
            if not self._takes(")"):
                raise _refused("a parenthesis of a standing query is not closed")
            return query
        if self._place == len(self._tokens):
            raise _unreadable("its end")
        text, read = self._tokens[self._place]
        self._place += 1
        if read is None:
            raise _unreadable(text)
        if read["compared"]:
            value = read["plain"] if read["quoted"] is None else read["quoted"]
            return _compared(read["field"], read["sign"], value, self._fields)
        return _words(text)

    def _takes(self, sign: str) -> bool:
        here = self._place < len(self._tokens) and self._tokens[self._place] == (sign, None)
        self._place += here
        return here


def _tokens(text: str) -> Sequence[tuple[str, re.Match[str] | None]]:
    """Splits a text into tokens; a separator that stands alone yields none."""
    tokens: list[tuple[str, re.Match[str] | None]] = []
    place = 0
    while place < len(text):
        read = _TOKEN.match(text, place)
        if read is None:
            raise _unreadable(text[place : place + 20])
        place = read.end()
        if read.lastgroup != "space":
            tokens.append((read[0], None if read["sign_alone"] else read))
    return tokens


def _words(text: str) -> Query:
    if text == ANYTHING:
        return Anything()
    prefix = text.endswith(ANYTHING) and not text.startswith('"')
    words = words_of(text)
    if not words:
        raise _unreadable(text)
    return Words(words, prefix)


def _compared(field: str, sign: str, text: str, fields: Mapping[str, FieldKind]) -> Compared:
    kind = fields.get(field)
    if kind is None:
        raise _refused(
            f"a standing query names {field}, which cannot be compared",
            "fields: " + (", ".join(sorted(fields)) or "none"),
        )
    try:
        value = _READ[kind](text)
    except (ValueError, InvalidOperation):
        raise _refused(
            f"a standing query compares {field} with a value that is not a {kind}"
        ) from None
    if kind in (FieldKind.BOOLEAN, FieldKind.TEXTS) and sign not in (":", "=", "!="):
        raise _refused(f"a {kind} has no order", f"{field}{sign}")
    return Compared(field, sign, value)


def _number(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError(text)
    return value


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()] if text.lower() in _TRUTHS else _no(text)


_TRUTHS: Final = ("true", "false")


def _no(text: str) -> bool:
    raise ValueError(text)


def _days(text: str) -> int:
    return (date.fromisoformat(text) - _EPOCH.date()).days


def _micros(text: str) -> int:
    read = datetime.fromisoformat(text)
    since = (read if read.tzinfo else read.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


_READ: Final[Mapping[FieldKind, Callable[[str], Any]]] = {
    FieldKind.NUMBER: _number,
    FieldKind.TEXT: str,
    FieldKind.BOOLEAN: _truth,
    FieldKind.DATE: _days,
    FieldKind.TIME: _micros,
    FieldKind.TEXTS: str,
}


def _unreadable(text: str) -> StandingQueryError:
    return _refused("a standing query cannot be read", f"at {text!r}")


def _refused(message: str, detail: str | None = None) -> StandingQueryError:
    return StandingQueryError(message, detail=detail, hint=_HINT)


def _there(query: Words, text: Sequence[str]) -> bool:
    wanted, last = query.words, len(query.words) - 1
    if not query.prefix and last == 0:
        return wanted[0] in text
    for start in range(len(text) - last):
        if text[start : start + last] == wanted[:last]:
            word = text[start + last]
            if word.startswith(wanted[last]) if query.prefix else word == wanted[last]:
                return True
    return False


def _holds(query: Compared, value: Any) -> bool:
    if value is None:
        return False
    if isinstance(value, (list, tuple)):
        return (query.value in value) == (query.sign != "!=")
    return _COMPARED[query.sign](value, query.value)


def _term(field: str, value: Any) -> str | None:
    """Returns the term of a field's value: of a short text or a truth value; else None."""
    if isinstance(value, bool):
        return f"{field}={str(value).lower()}"
    if isinstance(value, str) and len(value) <= VALUE_MAX:
        return f"{field}={value}"
    return None


def _rareness(word: str) -> tuple[int, str]:
    """Estimates how rare a word is: longer words are rarer."""
    return len(word), word


def _worth(choice: frozenset[str]) -> tuple[bool, int, int]:
    """Ranks a choice of anchors: few are best, then rare ones."""
    return ANYTHING not in choice, -len(choice), min(map(len, choice))


@dataclass(frozen=True, slots=True)
class Percolation:
    """A match of standing queries against documents: the definition of a view.

    Attributes:
        query: Column with the text of a query.
        query_keys: Columns that identify a query; the view calls them `query_<name>`.
        document_keys: Columns that identify a document.
        words: Columns of a document to search for words.
        keep: Columns of the document that a match contains, beside its keys.
        refused: Whether the view lists the queries that cannot be parsed, instead of matches.
    """

    query: str
    query_keys: tuple[str, ...]
    document_keys: tuple[str, ...]
    words: tuple[str, ...]
    keep: tuple[str, ...] = ()
    refused: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Returns the columns that identify a row of the view."""
        of_query = tuple(f"query_{name}" for name in self.query_keys)
        return of_query if self.refused else (*of_query, *self.document_keys)
