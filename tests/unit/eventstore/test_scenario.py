"""A scenario: it fails when it should, says why, and cannot be forgotten in silence."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from eventstore import EventTypes, Rejected, UndeclaredError, aggregate, evolves, handles, scenario
from eventstore.deciding.scenario import ForgottenExpectation
from tests.fix_account import (
    Account,
    Deposited,
    Empty,
    Overdrawn,
    Withdraw,
    Withdrawn,
    account,
)


class Closed(Rejected):
    """Another reason than the one that is given."""


TESTS = Path(__file__).resolve().parents[2]
RICH = Deposited("a", 100)


def test_a_command_leads_to_events():
    scenario(account()).given(RICH).when(Withdraw("a", 30)).then(Withdrawn("a", 30))


def test_a_command_leads_to_nothing():
    scenario(account()).when(Empty("a")).then_nothing()


def test_a_command_is_rejected():
    scenario(account()).when(Withdraw("a", 1)).then_rejected(Overdrawn, match="less than 1")
    scenario(account()).when(Withdraw("a", 1)).then_rejected()
    scenario(account()).when(Withdraw("a", 1)).then(Overdrawn)
    scenario(account()).when(Withdraw("a", 1)).then(Overdrawn("there is less than 1"))


def test_a_command_leads_to_a_state():
    scenario(account()).given(RICH).when(Withdraw("a", 30)).then_state(Account(70, (100, -30)))
    scenario(account()).given(RICH).given(RICH).then_state(Account(200, (100, 100)))


def test_a_story_goes_on_with_what_the_command_led_to():
    (
        scenario(account())
        .given(RICH)
        .when(Withdraw("a", 80))
        .then(Withdrawn("a", 80))
        .when(Withdraw("a", 30))
        .then_rejected(Overdrawn)
        .when(Empty("a"))
        .then(Withdrawn("a", 20))
        .then_state(Account(0, (100, -80, -20)))
    )


def then_other_events(sent):
    sent.then(Withdrawn("a", 31))


def then_fewer_events(sent):
    sent.then_nothing()


def then_more_events(sent):
    sent.then(Withdrawn("a", 30), Withdrawn("a", 30))


def then_a_rejection(sent):
    sent.then_rejected(Overdrawn)


def then_another_state(sent):
    sent.then_state(Account(71, (100, -30)))


@pytest.mark.parametrize(
    ("expectation", "said"),
    [
        (then_other_events, ["- Withdrawn(account_id='a', amount=31)", "+ Withdrawn"]),
        (then_fewer_events, ["- nothing", "+ Withdrawn(account_id='a', amount=30)"]),
        (then_more_events, ["  Withdrawn(account_id='a', amount=30)", "- Withdrawn"]),
        (then_a_rejection, ["not rejected; expected Overdrawn", "+ Withdrawn"]),
        (then_another_state, ["the state is another", "- Account(balance=71", "+ Account(bal"]),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_false_expectation_fails_and_shows_the_difference(expectation, said):
    with pytest.raises(AssertionError) as failed:
        expectation(scenario(account()).given(RICH).when(Withdraw("a", 30)))

    message = str(failed.value)
    assert [] == [part for part in said if part not in message]


def then_events(sent):
    sent.then(Withdrawn("a", 1))


def then_a_state(sent):
    sent.then_state(Account())


def then_another_reason(sent):
    sent.then_rejected(Closed)


def then_another_message(sent):
    sent.then_rejected(Overdrawn, match="more")


def then_an_instance_with_another_message(sent):
    sent.then(Overdrawn("no"))


@pytest.mark.parametrize(
    "expectation",
    [
        then_events,
        then_fewer_events,
        then_a_state,
        then_another_reason,
        then_another_message,
        then_an_instance_with_another_message,
    ],
    ids=lambda each: each.__name__,
)
def test_a_rejection_that_was_not_expected_so_fails_and_is_named(expectation):
    with pytest.raises(AssertionError, match="rejected: Overdrawn: there is less than 1"):
        expectation(scenario(account()).when(Withdraw("a", 1)))


def test_an_event_that_equals_one_of_another_class_is_another_event():
    class Same:
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

    with pytest.raises(AssertionError, match="other events"):
        scenario(account()).given(RICH).when(Withdraw("a", 1)).then(Same())


def test_a_command_that_the_decider_does_not_take_is_an_error():
    with pytest.raises(UndeclaredError):
        scenario(account()).when(RICH)


def test_a_decide_that_changes_its_state_is_found_out():
    types = EventTypes()

    @types.event("drawer.opened")
    class Opened:
        pass

    @dataclass(frozen=True)
    class Open:
        drawer: str

    @dataclass
    class Drawer:
        opened: int = 0

    def decide(_command, state):
        state.opened += 1
        return Opened()

    decider = account(decide=decide, commands=(Open,), initial_state=Drawer)

    with pytest.raises(AssertionError, match="decide changed the state"):
        scenario(decider).when(Open("d")).then(Opened())


def test_an_aggregate_has_scenarios():
    @aggregate("account", identity="account_id")
    class Purse:
        balance: int = 0

        @handles(Withdraw)
        def withdraw(self, command):
            if command.amount > self.balance:
                raise Overdrawn("no")
            return Withdrawn(command.account_id, command.amount)

        @evolves(Deposited)
        def deposited(self, event):
            self.balance += event.amount

        @evolves(Withdrawn)
        def withdrawn(self, event):
            self.balance -= event.amount

    sent = scenario(Purse).given(RICH).when(Withdraw("a", 30))
    sent.then(Withdrawn("a", 30)).then_state(Purse(70))
    scenario(Purse).when(Withdraw("a", 30)).then_rejected(Overdrawn)


def test_a_forgotten_expectation_warns_of_the_line_where_it_is_missing():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        line = sys._getframe().f_lineno + 1
        scenario(account()).when(Withdraw("a", 1))
        gc.collect()

    (warning,) = seen
    assert (ForgottenExpectation, __file__, line) == (
        warning.category,
        warning.filename,
        warning.lineno,
    )


def test_a_forgotten_expectation_fails_a_test_where_warnings_are_errors(tmp_path):
    """As a user would meet it: in a run of pytest of its own."""
    (tmp_path / "test_forgotten.py").write_text(
        "from fix_account import Withdraw, account\n"
        "from eventstore import scenario\n"
        "def test_it():\n"
        "    scenario(account()).when(Withdraw('a', 1))\n"
    )
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider"),
        *("-W", "error", "-o", f"pythonpath={TESTS}", str(tmp_path)),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 1 == run.returncode, run.stdout
    assert "no expectation was given for Withdraw" in run.stdout


@pytest.mark.parametrize("sent", [True, False], ids=["with a command", "without"])
def test_a_scenario_cannot_be_asserted_by_mistake(sent):
    story = scenario(account()).given(RICH)
    if not sent:
        with pytest.raises(AssertionError):
            assert story
        return
    asked = story.when(Withdraw("a", 1))

    with pytest.raises(AssertionError):
        assert asked
    asked.then(Withdrawn("a", 1))
