"""The process of a payment: confirm in time, withdraw, deposit; or give the money back."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from eventstore import Query, QueryItem, RecordedEvent
from eventstore.process import (
    Cancel,
    CommandRejected,
    Complete,
    Dispatch,
    ProcessManager,
    Reaction,
    Schedule,
    TimedOut,
)
from examples.bank.domain import (
    Deposit,
    EndPayment,
    ExpirePayment,
    MoneyDeposited,
    MoneyWithdrawn,
    PaymentCompleted,
    PaymentConfirmed,
    PaymentFailed,
    PaymentRequested,
    Withdraw,
)

TYPES = ("payment_requested", "payment_confirmed", "payment_completed", "payment_failed")
QUERY = Query((QueryItem(frozenset(f"bank.{one}" for one in (*TYPES, "deposited", "withdrawn"))),))


@dataclass(frozen=True)
class PaymentState:
    """What was requested."""

    payment: str = ""
    source: str = ""
    target: str = ""
    amount: Decimal = Decimal(0)


def evolve(state: PaymentState, taken: object) -> PaymentState:
    """Only the request says what a payment is."""
    if isinstance(taken, PaymentRequested):
        return PaymentState(taken.payment, taken.source, taken.target, taken.amount)
    return state


def payments(confirm_within: timedelta) -> ProcessManager[PaymentState]:
    """Returns the process manager.

    Args:
        confirm_within: How long the payer has.
    """

    def react(state: PaymentState, taken: object) -> Iterable[Reaction]:
        deposit, payment = Deposit(state.target, state.amount, state.payment), state.payment
        match taken:
            case PaymentRequested():
                yield Schedule("confirmation", after=confirm_within)
            case TimedOut("confirmation"):
                yield Dispatch(ExpirePayment(payment))
            case PaymentConfirmed():
                yield Cancel("confirmation")
                yield Dispatch(Withdraw(state.source, state.amount, payment))
            case MoneyWithdrawn():
                yield Dispatch(deposit)
            case MoneyDeposited(account) if account == state.target:
                yield Dispatch(EndPayment(payment))
            case MoneyDeposited() | CommandRejected("Withdraw"):
                yield Dispatch(EndPayment(payment, "the money could not be moved"))
            case CommandRejected("Deposit"):
                yield Dispatch(Deposit(state.source, state.amount, payment))
            case PaymentCompleted() | PaymentFailed():
                yield Complete()
            case _:
                pass

    return ProcessManager(
        name="payments",
        correlate=correlate,
        initial_state=PaymentState,
        evolve=evolve,
        react=react,
        query=QUERY,
    )


def correlate(recorded: RecordedEvent) -> str | None:
    """Money moved at the counter belongs to no payment."""
    return recorded.event.payment or None
