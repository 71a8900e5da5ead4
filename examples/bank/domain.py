"""Accounts and payments: what happened, what may be asked for, and the rules."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from eventstore import (
    Personal,
    Rejected,
    aggregate,
    event,
    evolves,
    handles,
    personal_tag,
    upcast,
)


@event("bank.opened", subject="owner", tags=lambda e: [personal_tag("email", e.email)])
class AccountOpened:
    """A customer has an account."""

    account: str
    owner: str
    name: Personal[str]
    email: Personal[str]


@event("bank.deposited")
class MoneyDeposited:
    """Money came in: at the counter, or by a payment."""

    account: str
    amount: Decimal
    payment: str = ""


@event("bank.withdrawn", version=2)
class MoneyWithdrawn:
    """Money went out."""

    account: str
    amount: Decimal
    payment: str
    note: str


@upcast(MoneyWithdrawn, from_version=1)
def note_of_version_1(data: dict[str, Any]) -> dict[str, Any]:
    """Adds the note that version 1 did not have."""
    return {**data, "note": ""}


@event("bank.payment_requested")
class PaymentRequested:
    """The payer is to confirm a payment."""

    payment: str
    source: str
    target: str
    amount: Decimal


@event("bank.payment_confirmed")
class PaymentConfirmed:
    """The payer has confirmed it."""

    payment: str


@event("bank.payment_completed")
class PaymentCompleted:
    """The money has arrived."""

    payment: str


@event("bank.payment_failed")
class PaymentFailed:
    """No money was moved, or it was returned."""

    payment: str
    reason: str


@dataclass(frozen=True)
class OpenAccount:
    """Opens an account; an e-mail address has one account."""

    account: str
    owner: str
    name: Personal[str]
    email: Personal[str]


@dataclass(frozen=True)
class Deposit:
    """Pays money in."""

    account: str
    amount: Decimal
    payment: str = ""


@dataclass(frozen=True)
class Withdraw:
    """Takes money out."""

    account: str
    amount: Decimal
    payment: str = ""
    note: str = ""


@dataclass(frozen=True)
class RequestPayment:
    """Asks for money to be moved between two accounts."""

    payment: str
    source: str
    target: str
    amount: Decimal


@dataclass(frozen=True)
class ConfirmPayment:
    """The payer agrees."""

    payment: str


@dataclass(frozen=True)
class ExpirePayment:
    """Ends a payment that was not confirmed in time."""

    payment: str


@dataclass(frozen=True)
class EndPayment:
    """Ends a confirmed payment; without a reason the money has arrived."""

    payment: str
    reason: str = ""


class EmailTaken(Rejected):
    """The address has an account."""


class TooLittleMoney(Rejected):
    """The account has less than is to be withdrawn."""


@aggregate("account", identity="account")
class Account:
    """One account."""

    open: bool = False
    balance: Decimal = Decimal(0)

    @handles
    def open_it(self, command: OpenAccount, seen: tuple[AccountOpened, ...]) -> AccountOpened:
        """`seen` are the accounts that were opened with the address."""
        if seen:
            raise EmailTaken("the address has an account")
        if self.open:
            raise Rejected("the account is open already")
        return AccountOpened(command.account, command.owner, command.name, command.email)

    @handles
    def deposit(self, command: Deposit) -> MoneyDeposited:
        """Any amount, into an open account."""
        self._check(command.amount)
        return MoneyDeposited(command.account, command.amount, command.payment)

    @handles
    def withdraw(self, command: Withdraw) -> MoneyWithdrawn:
        """Never more than there is."""
        self._check(command.amount)
        if command.amount > self.balance:
            raise TooLittleMoney("there is too little money")
        return MoneyWithdrawn(command.account, command.amount, command.payment, command.note)

    def _check(self, amount: Decimal) -> None:
        if not self.open or amount <= 0:
            raise Rejected("there is no such account, or nothing to move")

    @evolves
    def _opened(self, event: AccountOpened) -> None:  # noqa: ARG002  # its class is enough
        self.open = True

    @evolves
    def _deposited(self, event: MoneyDeposited) -> None:
        self.balance += event.amount

    @evolves
    def _withdrawn(self, event: MoneyWithdrawn) -> None:
        self.balance -= event.amount


@aggregate("payment", identity="payment")
class Payment:
    """One payment: requested, confirmed, ended."""

    status: str = ""

    @handles
    def request(self, command: RequestPayment) -> PaymentRequested:
        """From one account to another."""
        self._require("")
        if command.source == command.target or command.amount <= 0:
            raise Rejected("a payment moves money between two accounts")
        return PaymentRequested(command.payment, command.source, command.target, command.amount)

    @handles
    def confirm(self, command: ConfirmPayment) -> PaymentConfirmed:
        """Before its time is over."""
        self._require("requested")
        return PaymentConfirmed(command.payment)

    @handles
    def expire(self, command: ExpirePayment) -> PaymentFailed:
        """Refused if the payer was faster."""
        self._require("requested")
        return PaymentFailed(command.payment, "not confirmed in time")

    @handles
    def end(self, command: EndPayment) -> PaymentCompleted | PaymentFailed:
        """Once the money has arrived, or is back."""
        self._require("confirmed")
        if command.reason:
            return PaymentFailed(command.payment, command.reason)
        return PaymentCompleted(command.payment)

    def _require(self, status: str) -> None:
        if self.status != status:
            raise Rejected("the payment is at another step")

    @evolves
    def _changed(
        self, event: PaymentRequested | PaymentConfirmed | PaymentCompleted | PaymentFailed
    ) -> None:
        self.status = type(event).__name__.removeprefix("Payment").lower()
