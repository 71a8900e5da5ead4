"""The table of balances that readers query."""

from decimal import Decimal
from typing import Any

import psycopg

from eventstore import Query, RecordedEvent
from examples.bank.domain import MoneyDeposited, MoneyWithdrawn

TABLE = "CREATE TABLE balances (account text PRIMARY KEY, balance numeric NOT NULL)"


class Balances:
    """Keeps the table."""

    name = "balances"
    query = Query(category="account")
    tables = ("balances",)

    def apply(self, recorded: RecordedEvent, connection: psycopg.Connection[Any]) -> None:
        """Adds one event."""
        match recorded.event:
            case MoneyDeposited(account, amount):
                change = amount
            case MoneyWithdrawn(account, amount):
                change = -amount
            case opened:
                account, change = opened.account, Decimal(0)
        connection.execute(
            "INSERT INTO balances AS b VALUES (%s, %s) ON CONFLICT (account)"
            " DO UPDATE SET balance = b.balance + excluded.balance",
            [account, change],
        )
