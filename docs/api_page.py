"""The reference of the event store's public names, from their docstrings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES: Final = (
    "eventstore",
    "eventstore.memory",
    "eventstore.compaction",
    "eventstore.master_key",
    "eventstore.postgres.log",
    "eventstore.postgres.async_log",
    "eventstore.postgres.schema",
    "eventstore.postgres.keyring",
    "eventstore.postgres.compaction",
    "eventstore.postgres.retention",
    "eventstore.postgres.audit",
    "eventstore.privacy.keyring",
    "eventstore.upkeep.retention",
    "eventstore.upkeep.audit",
    "eventstore.subscription",
    "eventstore.subscription.runner",
    "eventstore.subscription.async_runner",
    "eventstore.subscription.control",
    "eventstore.subscription.async_control",
    "eventstore.subscription.rebuild",
    "eventstore.process",
    "eventstore.process.runner",
    "eventstore.process.async_runner",
    "eventstore.reactor",
    "eventstore.reactor.runner",
    "eventstore.reactor.async_runner",
    "eventstore.reactor.control",
    "eventstore.reactor.dry_run",
    "eventstore.testing",
)
"""What a user imports, in the order of the page."""


def page(notice: str) -> str:
    """Returns the page.

    Args:
        notice: Its first line.
    """
    sections = [
        f"{notice}\n# API of the event store\n",
        "The public names, by module, generated from their docstrings.",
    ]
    for name in MODULES:
        module = importlib.import_module(name)
        sections.append(f"\n## `{name}`\n\n{_first(module.__doc__)}")
        sections += [_entry(each, value) for each, value in public(name)]
    return "\n".join(sections).rstrip() + "\n"


def public(name: str) -> Iterator[tuple[str, Any]]:
    """Yields a module's public names and what they are, by name."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            each
            for each, value in vars(module).items()
            if not each.startswith("_")
            and (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__ == name
        ]
    for each in sorted(names):
        yield each, getattr(module, each)


def _entry(name: str, value: Any) -> str:
    if inspect.isclass(value):
        return _class(name, value)
    if inspect.isroutine(value):
        return f"\n### `{name}{_signature(value)}`\n\n{_described(value)}"
    return f"\n### `{name}`\n\n{_constant(value)}"


def _class(name: str, value: type) -> str:
    kind = "exception" if issubclass(value, BaseException) else "class"
    constructed = not issubclass(value, (BaseException, Enum)) and not _protocol(value)
    shown = f"{name}{_signature(value)}" if constructed else name
    lines = [f"\n### {kind} `{shown}`\n\n{_described(value)}"]
    if issubclass(value, BaseException):
        return lines[0]
    for each, member in sorted(vars(value).items()):
        if each.startswith("_") or each in _fields(value):
            continue
        function = getattr(member, "__func__", member)
        if isinstance(member, property):
            lines.append(f"\n- `{each}`: {_first(member.__doc__)}")
        elif inspect.isfunction(function):
            lines.append(
                f"\n- `{each}{_signature(function, bound=True)}`: {_first(function.__doc__)}"
            )
    return "\n".join(lines)


def _fields(value: type) -> set[str]:
    if dataclasses.is_dataclass(value):
        return {field.name for field in dataclasses.fields(value)}
    return set(getattr(value, "_fields", ()))


def _protocol(value: type) -> bool:
    return bool(getattr(value, "_is_protocol", False))


def _signature(value: Any, *, bound: bool = False) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(signature.parameters.values())
    if bound and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    shown: list[str] = []
    keyword = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword:
            keyword = True
            shown.append("*")
        keyword = keyword or parameter.kind is parameter.VAR_POSITIONAL
        stars: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        prefix = stars.get(parameter.kind, "")
        optional = parameter.default is not parameter.empty
        shown.append(f"{prefix}{parameter.name}{'=…' if optional else ''}")
    return f"({', '.join(shown)})"


def _described(value: Any) -> str:
    """A docstring: its text, and what it says of arguments, attributes and errors, as lists."""
    text = inspect.getdoc(value) or ""
    lines: list[str] = []
    listing = False
    for line in text.splitlines():
        if line in ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:"):
            listing = True
            lines += [f"*{line[:-1]}*", ""]
        elif listing and line.startswith("    ") and not line.startswith("     "):
            name, found, meaning = line.strip().partition(": ")
            lines.append(f"- `{name}`: {meaning}" if found else f"- {line.strip()}")
        elif listing and line.strip():
            lines.append(f"  {line.strip()}")
        else:
            listing = listing and not line.strip()
            lines.append(line)
    return "\n".join(lines)


def _constant(value: Any) -> str:
    if typing.get_origin(value) is not None or not isinstance(value, (int, str, Enum)):
        return "A type." if not isinstance(value, (int, str)) else f"`{value!r}`"
    return f"`{value!r}`"


def _first(doc: str | None) -> str:
    paragraph, _, _ = inspect.cleandoc(doc or "").partition("\n\n")
    return " ".join(paragraph.split())
