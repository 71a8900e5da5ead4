"""A command on several sources reports what fails for one and goes on with the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import typer

from headwater.cli.services import _derive
from headwater.cli.sources import for_each
from headwater.errors import UnhealthyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.platform.platform import Platform


def platform(name: str, apply: Callable[[], list[str]] = list) -> Platform:
    """A source whose views are kept as soon as it is captured."""
    project = SimpleNamespace(source=SimpleNamespace(name=name, tables=[]), shares_home=True)
    made = SimpleNamespace(
        project=project,
        apply=apply,
        first_change=lambda _: None,
        await_job=lambda *_: None,
    )
    return cast("Platform", made)


def fail() -> list[str]:
    raise UnhealthyError("the source does not answer", hint="start it")


def test_the_others_go_on_and_the_exit_code_is_that_of_the_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = for_each([platform("shop", fail), platform("billing")], lambda each: each.apply())

    assert {"billing": []} == done.results
    with pytest.raises(typer.Exit) as ended:
        done.end()
    assert 3 == ended.value.exit_code
    said = capsys.readouterr().err
    assert ("source shop" in said, "does not answer" in said) == (True, True)


def test_an_error_of_the_only_source_is_raised() -> None:
    with pytest.raises(UnhealthyError):
        for_each([platform("shop", fail)], lambda each: each.apply())


def test_a_finding_ends_a_command_unless_a_source_failed() -> None:
    def refuse(each: Platform) -> None:
        if each.project.source.name == "shop":
            raise UsageError("no such view")

    with pytest.raises(typer.Exit) as found:
        for_each([platform("shop"), platform("billing")], lambda _: None).end(3)
    with pytest.raises(typer.Exit) as failed:
        for_each([platform("shop"), platform("billing")], refuse).end(3)

    assert (3, 2) == (found.value.exit_code, failed.value.exit_code)


@pytest.mark.parametrize("failing", [["shop"], ["billing"], ["shop", "billing"]])
def test_up_waits_for_the_sources_that_are_captured_and_fails_for_the_others(
    failing: list[str],
) -> None:
    said: list[str] = []
    every = [platform(name, fail if name in failing else list) for name in ("shop", "billing")]

    done = _derive(every, said.append)

    kept = [line for line in said if "views are being kept" in line]
    assert 2 - len(failing) == len(kept)
    assert set(failing) == done.failed.keys()
    with pytest.raises(typer.Exit):
        done.end()
