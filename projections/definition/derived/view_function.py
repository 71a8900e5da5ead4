"""ViewFunction: a function of DataFrames that defines a view, and the digest that identifies it."""

from __future__ import annotations

import hashlib
import inspect
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from projections.definition.derived.function_source import UnresolvablePartError, sliced
from projections.definition.registry import load
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from projections.definition.derived.function_source import FunctionSlice

_PART: Final = "part:"
_PART_DIGEST: Final = re.compile(_PART + "([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ViewFunction:
    """A function that defines a view; another process imports it from its module.

    Attributes:
        made: The function.
        view: Name of the view.
        module: The module that declares it; None outside one.
        folders: Additional folders to import modules from.
        whole: Text of its whole module; without one, its own text.
        part: The parts of its module that it needs; None if unknown.
        unresolved: Why the parts cannot be determined; empty if they can.
    """

    made: Callable[..., Any]
    view: str
    module: Path | None
    folders: tuple[Path, ...] = ()
    whole: str = ""
    part: FunctionSlice | None = None
    unresolved: str = ""

    @classmethod
    def of(
        cls,
        made: Callable[..., Any],
        view: str,
        module: Path | None,
        folders: tuple[Path, ...] = (),
    ) -> ViewFunction:
        """Wraps a function together with the text that identifies it.

        Args:
            made: The function.
            view: Name of the view.
            module: The module that is being loaded; None without one.
            folders: Additional folders to import modules from.
        """
        if module is None:
            return cls(made, view, None, (), inspect.getsource(made), None, "it is of no module")
        with tokenize.open(module) as file:  # in the encoding that the file declares
            whole = file.read()
        try:
            return cls(made, view, module, folders, whole, _part(made, module, whole))
        except UnresolvablePartError as error:
            return cls(made, view, module, folders, whole, None, str(error))

    def __call__(self, *inputs: Any) -> Any:
        """Computes the view from a DataFrame for each of its inputs."""
        return self.made(*inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.module is None:
            raise DeclarationError(
                f"view {self.view} is a function outside a module, and cannot be sent to a job",
                hint="declare it in the views module",
            )
        return _reload, (self.view, self.module, self.folders, self.text)

    @property
    def text(self) -> str:
        """Returns the digest that identifies the function: of its parts, or of its whole module."""
        return self.former if self.part is None else identity_text(self.part.digest)

    @property
    def former(self) -> str:
        """Its digest in earlier releases, which covered the whole module."""
        return hashlib.sha256(self.whole.encode()).hexdigest()


def identity_text(digest: str) -> str:
    """Returns the text that identifies a function whose parts have this digest."""
    return f"{_PART}{digest}"


def digest_in(text: str) -> str | None:
    """Returns the digest of a function's parts; None if its text has none.

    Args:
        text: The function's text in a definition.
    """
    match = _PART_DIGEST.fullmatch(text)
    return None if match is None else match[1]


def _part(made: Callable[..., Any], module: Path, whole: str) -> FunctionSlice:
    """Returns the part of its module that a function needs.

    Raises:
        UnresolvablePartError: The part cannot be determined.
    """
    if not isinstance(made, FunctionType) or hasattr(made, "__wrapped__") or made.__closure__:
        raise UnresolvablePartError("it is nested in another function")
    code = made.__code__
    if Path(code.co_filename).resolve() != module:
        raise UnresolvablePartError("it is defined in another module")
    return sliced(whole, code.co_name, code.co_firstlineno)


def _reload(view: str, module: Path, folders: tuple[Path, ...], text: str) -> object:
    function = load(module, *folders).derived[view].function
    if not isinstance(function, ViewFunction) or function.text != text:
        raise DeclarationError(
            f"the function of view {view} has changed since it was declared",
            detail=str(module),
            hint="run the command again",
        )
    return function
