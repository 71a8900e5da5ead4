"""The part of a module that one of its functions needs: it identifies the function, and is stored.

It consists of the function without its decorators and, transitively, of every statement of the
module that binds a name which the function uses, or changes the object of such a name, in the
module's order. An edit elsewhere in the module therefore does not change the function, and the
stored part still runs after the module has changed.

Imports are stored by reference: no other module is stored. If a function's parts cannot be
determined, it is not stored.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import symtable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MADE: Final = "__headwater_view__"
"""Name of the function after a stored part has run, instead of its own name."""

_OWN: Final = frozenset({"cdc", "eventstore", "foundation", "headwater", "projections"})
"""Packages whose functions declare views; a stored part must not repeat the declaration."""
_CONSTANT: Final = "'"
_DYNAMIC: Final = frozenset({"eval", "exec", "globals", "locals", "vars"})
_MUTATORS: Final = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert"),
        *("move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault"),
        *("sort", "subtract", "update", "__setitem__", "__delitem__"),
    }
)
_BINDINGS: Final = (ast.Assign, ast.AnnAssign, ast.NamedExpr)
_BUILTINS: Final = frozenset(
    name for name in dir(builtins) if not name.startswith("__") or name == "__import__"
)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS: Final = (*_FUNCTIONS, ast.ClassDef)


class UnresolvablePartError(Exception):
    """The parts of a function cannot be determined; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class FunctionSlice:
    """The part of its module that a function needs.

    Attributes:
        text: A module that binds the function to `MADE`.
        digest: Identifies the part independently of layout, comments and docstrings.
    """

    text: str
    digest: str


@lru_cache(maxsize=256)
def sliced(source: str, name: str, line: int) -> FunctionSlice:
    """Returns the part of its module that a function needs.

    Args:
        source: Text of the module.
        name: The function's name there.
        line: Its first line, including its decorators.

    Raises:
        UnresolvablePartError: The part cannot be determined.
    """
    module = _module(source)
    declaration = next((each for each in module.statements if each.begins(name, line)), None)
    if declaration is None:
        raise UnresolvablePartError("it is not defined at the top level of its module")
    text = module.lines.text(declaration.node)
    made = _Statement.of(ast.parse(text).body[0], text, declaration.place)  # without its decorators
    chosen, needed = module.closed(made, declaration)
    module.require_resolvable(made, chosen, needed)
    parts = sorted([made, *chosen], key=lambda each: each.place)
    texts = [f"{each.text}\n{MADE} = {name}" if each is made else each.text for each in parts]
    kept = "\n\n".join(texts) + "\n"
    return FunctionSlice(kept, digest_of(kept))


def digest_of(text: str) -> str:
    """Returns the digest that identifies a part.

    It covers the syntax tree, so every Python release that parses the text alike computes the same
    digest.

    Raises:
        SyntaxError: The text is not Python.
    """
    tree = ast.parse(text)
    documented = any(
        (isinstance(node, ast.Attribute) and node.attr == "__doc__")
        or (isinstance(node, ast.Name) and node.id == "__doc__")
        for node in ast.walk(tree)
    )
    canonical = "".join(_canonical(tree, docstrings=documented))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(tree: ast.AST, *, docstrings: bool) -> Iterator[str]:
    """Serializes a tree with a stack: a chain of calls can exceed the recursion limit."""
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _SerializedText):
            yield node
        elif isinstance(node, ast.AST):
            fields = [
                (field, value)
                for field, value in ast.iter_fields(node)
                if value is not None and value != [] and field not in {"ctx", "kind"}
            ]
            yield f"({type(node).__name__}"
            waiting.append(_SerializedText(")"))
            for field, value in reversed(fields):
                waiting += [value, _SerializedText(f" {field}=")]
        elif isinstance(node, list):
            kept = [each for each in node if docstrings or not _text_alone(each)]
            yield "["
            waiting += [_SerializedText("]"), *reversed(kept)]
        else:
            yield f"{node!r},"


class _SerializedText(str):
    """Text that is already serialized, and not a constant of the tree."""

    __slots__ = ()


def _text_alone(node: Any) -> bool:
    """Returns whether a statement is only a string: a docstring, or a comment in its place."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@dataclass(frozen=True, slots=True)
class _Statement:
    """A top-level statement of a module; an import of several names counts as one for each name.

    Attributes:
        node: Its syntax tree.
        text: Its text.
        place: Its position in the module.
        binds: Names that it binds.
        refers: Names of the module that it, or any function in it, reads.
        perhaps: Those names that are local if the statement has bound them by then.
        evaluates: Names that it reads while the module runs.
        changes: Names whose objects it changes while the module runs.
        given: Names whose objects a call may change while the module runs, each with the callee.
        aliased: Names whose objects it may bind to another name.
        later: Names that its functions bind, or whose objects they change, when called.
        touched: Names whose objects its functions may change by a call.
    """

    node: ast.stmt
    text: str
    place: tuple[int, int]
    binds: frozenset[str]
    refers: frozenset[str]
    perhaps: frozenset[str]
    evaluates: frozenset[str]
    changes: frozenset[str]
    given: frozenset[tuple[str, str]]
    aliased: frozenset[str]
    later: frozenset[str]
    touched: frozenset[str]

    @classmethod
    def of(cls, node: ast.stmt, text: str, place: tuple[int, int]) -> _Statement:
        top, *inner = _scopes(symtable.symtable(text, "views", "exec"))
        symbols = [(scope, symbol) for scope in inner for symbol in scope.get_symbols()]
        refers = {each.get_name() for each in top.get_symbols() if each.is_referenced()}
        refers |= {each.get_name() for _, each in symbols if each.is_global()}
        perhaps = {
            each.get_name()
            for scope, each in symbols
            if scope.get_type() != "function" and each.is_referenced() and not each.is_global()
        }
        bound = {e.get_name() for _, e in symbols if e.is_declared_global() and e.is_assigned()}
        now = list(_run_now(node))
        at_once = set(now)
        then = [each for each in ast.walk(node) if each not in at_once]
        return cls(
            node,
            text,
            place,
            frozenset(
                e.get_name() for e in top.get_symbols() if e.is_assigned() or e.is_imported()
            ),
            frozenset(refers | perhaps),
            frozenset(perhaps),
            _names(now),
            frozenset(_changed(now)),
            frozenset(_given(now)),
            frozenset(_aliased(now)),
            frozenset(bound | (set(_changed(then)) & refers)),
            frozenset(set(_touched(then)) & refers),
        )

    @property
    def imports(self) -> bool:
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def future(self) -> bool:
        return isinstance(self.node, ast.ImportFrom) and self.node.module == "__future__"

    @property
    def fixed(self) -> bool:
        """Returns whether a call cannot change anything that the statement binds."""
        node = self.node
        if isinstance(node, ast.Assign):
            return all(isinstance(target, ast.Name) for target in node.targets) and _constant(
                node.value
            )
        if isinstance(node, _FUNCTIONS):
            return not node.decorator_list  # otherwise its value is unknown
        return self.imports

    def begins(self, name: str, line: int) -> bool:
        """Returns whether it is the function of that name that begins on that line."""
        node = self.node
        return isinstance(node, _FUNCTIONS) and (node.name, _first_line(node)) == (name, line)


class _Lines:
    """The lines of a module's text, addressed by byte offsets."""

    def __init__(self, source: str) -> None:
        self._lines = [line.encode("utf-8", "surrogatepass") for line in source.split("\n")]

    def text(self, node: ast.stmt, *, decorated: bool = False) -> str:
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        begin, end = node.col_offset, node.end_col_offset
        if decorated and isinstance(node, _DEFINITIONS) and node.decorator_list:
            # it shares its lines with no other statement
            first, begin, end = _first_line(node) - 1, 0, None
        lines = self._lines[first : last + 1]
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][begin:]
        return b"\n".join(lines).decode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class _Module:
    """A module, analysed for the statements that its functions may need.

    Attributes:
        lines: The module's text.
        statements: The top-level statements, in order.
        affects: For each statement, names that it binds or whose objects it may change.
        aliases: For each statement, names whose objects it may bind to another name.
        inward: Names that its functions bind, or whose objects they change, when called.
        words: Names that are imported from this program's own packages.
        dynamic: A construct by which it can reach names that it does not mention; None if there is
            none.
    """

    lines: _Lines
    statements: tuple[_Statement, ...]
    affects: tuple[frozenset[str], ...]
    aliases: tuple[frozenset[str], ...]
    inward: frozenset[str]
    words: frozenset[str]
    dynamic: str | None

    @classmethod
    def of(cls, source: str) -> _Module:
        lines = _Lines(source)
        statements = tuple(
            part
            for node in ast.parse(source).body
            if not _text_alone(node)
            for part in _parts(lines, node)
        )
        binding = [(name, each) for each in statements for name in each.binds]
        bound = frozenset(name for name, _ in binding)
        # names whose objects a call could change
        mutable = frozenset(name for name, each in binding if not each.fixed)
        words = frozenset[str]().union(*(_own_words(each.node) for each in statements))
        harmless = words | (_BUILTINS - bound) | {_CONSTANT}
        aliases = tuple(each.aliased & mutable for each in statements)
        affects = []
        for each, aliased in zip(statements, aliases, strict=True):
            given = frozenset(name for name, called in each.given if called not in harmless)
            affects.append(each.binds | each.changes | (given & mutable) | aliased)
        inward = frozenset[str]().union(*(e.later | (e.touched & mutable) for e in statements))
        reached = (_dynamic(each, bound) for each in statements)
        dynamic = next((each for each in reached if each is not None), None)
        return cls(lines, statements, tuple(affects), aliases, inward, words, dynamic)

    def closed(
        self, made: _Statement, declaration: _Statement
    ) -> tuple[list[_Statement], frozenset[str]]:
        """Returns the statements that a function needs, and all names to which these refer.

        Args:
            made: The function.
            declaration: The statement with its decorators.
        """
        each_with = zip(self.statements, self.affects, self.aliases, strict=True)
        left = [each for each in each_with if each[0] is not declaration]
        chosen = [each for each in left if each[0].future]
        needed = set(made.refers)
        while True:
            # a change under another name is a change of the object's own name
            needed.update(*(each.binds for each, _, aliased in chosen if needed & aliased))
            known = {id(each) for each, _, _ in chosen}
            left = [each for each in left if id(each[0]) not in known]
            more = [each for each in left if needed & each[1]]
            if not more:
                return [each for each, _, _ in chosen], frozenset(needed)
            chosen += more
            needed.update(*(each.refers for each, _, _ in more))

    def require_resolvable(
        self, made: _Statement, chosen: list[_Statement], needed: frozenset[str]
    ) -> None:
        """Refuses a part whose names could mean something else at run time.

        Raises:
            UnresolvablePartError: The names are ambiguous.
        """
        if self.dynamic is not None:
            raise UnresolvablePartError(f"its module reaches names by {self.dynamic}")
        if own := made.binds & needed:
            raise UnresolvablePartError(f"it, or code that it uses, reads {min(own)}")
        bound = frozenset[str]().union(*(each.binds for each in chosen))
        perhaps = frozenset[str]().union(*(each.perhaps for each in (made, *chosen)))
        if unknown := needed - bound - perhaps - _BUILTINS - {"__name__"}:
            raise UnresolvablePartError(f"the definition of {min(unknown)} cannot be determined")
        if inward := needed & self.inward:
            raise UnresolvablePartError(f"a function of its module changes {min(inward)}")
        for each in (made, *chosen):
            if declaring := each.evaluates & self.words:
                raise UnresolvablePartError(
                    f"code that it uses calls a declaring function: {min(declaring)}"
                )


@lru_cache(maxsize=8)
def _module(source: str) -> _Module:
    try:
        return _Module.of(source)
    except (SyntaxError, RecursionError, ValueError) as error:
        raise UnresolvablePartError(f"its module cannot be read: {type(error).__name__}") from None


def _parts(lines: _Lines, node: ast.stmt) -> Iterator[_Statement]:
    """Splits a statement: an import yields one part for each name."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        yield _Statement.of(node, lines.text(node, decorated=True), (node.lineno, node.col_offset))
        return
    for alias in node.names:
        one: ast.stmt = (
            ast.ImportFrom(node.module, [alias], node.level)
            if isinstance(node, ast.ImportFrom)
            else ast.Import([alias])
        )
        yield _Statement.of(one, ast.unparse(one), (alias.lineno, alias.col_offset))


def _dynamic(each: _Statement, bound: frozenset[str]) -> str | None:
    """Returns the construct by which a statement can reach names that it does not mention."""
    for node in ast.walk(each.node):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            return f"from {node.module} import *"
        if isinstance(node, ast.Attribute) and node.attr == "modules" and _root(node) == "sys":
            return "sys.modules"
    dynamic = (each.refers & _DYNAMIC) - bound
    return f"{min(dynamic)}()" if dynamic else None


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _run_now(statement: ast.stmt) -> Iterator[ast.AST]:
    """Returns the nodes that run with the statement, not when a function is called."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, _FUNCTIONS):
            waiting += [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]
        elif isinstance(node, ast.Lambda):
            waiting.append(node.args)
        else:
            waiting += ast.iter_child_nodes(node)


def _aliased(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Returns names whose object, or an object that contains it, gets another name."""
    for node in nodes:
        waiting = [getattr(node, "value", None)] if isinstance(node, _BINDINGS) else []
        while waiting:
            value = waiting.pop()
            if isinstance(value, ast.Name):
                yield value.id
            elif isinstance(value, ast.Attribute | ast.Subscript | ast.Starred | ast.NamedExpr):
                waiting.append(value.value)
            elif isinstance(value, ast.IfExp):
                waiting += [value.body, value.orelse]
            elif isinstance(value, ast.List | ast.Tuple | ast.Set):
                waiting += value.elts
            elif isinstance(value, ast.BoolOp | ast.Dict):
                waiting += value.values


def _names(nodes: Iterable[ast.AST]) -> frozenset[str]:
    return frozenset(each.id for each in nodes if isinstance(each, ast.Name))


def _changed(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Returns names that are bound or deleted in part."""
    for node in nodes:
        target: ast.expr | None = None
        if isinstance(node, ast.Attribute | ast.Subscript):
            target = None if isinstance(node.ctx, ast.Load) else node
        elif isinstance(node, ast.Call) and _root(node.func) in {"setattr", "delattr"}:
            target = node.args[0] if node.args else None
        if target is not None and (name := _root(target)):
            yield name


def _touched(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Returns names with a called method that changes them, and the method's name."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = _root(node.func)
            if node.func.attr in _MUTATORS and name:
                yield name


def _given(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Returns names that are passed to a call, and the callee."""
    for node in nodes:
        if isinstance(node, ast.Call):
            called = _root(node.func)
            if isinstance(node.func, ast.Attribute):  # a method may change its object
                yield called, called
            for each in (*node.args, *(word.value for word in node.keywords)):
                yield from ((name, called) for name in _names(ast.walk(each)))
        elif isinstance(node, ast.Expr):
            called = _root(node.value)
            yield from ((name, called) for name in _names(ast.walk(node.value)))
        elif isinstance(node, _DEFINITIONS):
            for each in node.decorator_list:
                yield from ((name, _root(each)) for name in _names(ast.walk(each)))


def _root(node: ast.expr) -> str:
    """Returns the name at the start of an expression; `_CONSTANT` for a constant; else empty."""
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute | ast.Subscript | ast.Call):
        inner = inner.func if isinstance(inner, ast.Call) else inner.value
    if isinstance(inner, ast.Constant | ast.JoinedStr):
        return _CONSTANT
    return inner.id if isinstance(inner, ast.Name) else ""


def _constant(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(map(_constant, node.elts))
    return isinstance(node, ast.Constant | ast.JoinedStr)


def _own_words(statement: ast.stmt) -> frozenset[str]:
    """Returns names imported from this program's own packages."""
    imported = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _OWN:
            imported |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Import):
            tops = [(each.name.partition(".")[0], each.asname) for each in node.names]
            imported |= {asname or top for top, asname in tops if top in _OWN}
    return frozenset(imported)
