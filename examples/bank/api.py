"""The HTTP API: a POST for each command, with an idempotency key, and a read of the balance.

POST /open-account  /deposit  /withdraw  /request-payment  /confirm-payment
GET /accounts/1?after=TOKEN     waits until the table has the command that returned the token
DELETE /owners/ada              destroys her key
GET /ready
"""

import json
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import psycopg

from eventstore import (
    Context,
    EventStore,
    EventStoreError,
    IdempotencyConflictError,
    Rejected,
    Token,
    UndeclaredError,
    tagged,
)
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.subscription.control import Subscriptions
from examples.bank import domain

COMMANDS: dict[str, type[object]] = {
    "/open-account": domain.OpenAccount,
    "/deposit": domain.Deposit,
    "/withdraw": domain.Withdraw,
    "/request-payment": domain.RequestPayment,
    "/confirm-payment": domain.ConfirmPayment,
}


class Bank:
    """What answers requests; made before the workers are forked."""

    def __init__(self, dsn: str, store: EventStore, keyring: PostgresKeyRing) -> None:
        self.dsn, self.store, self.keyring = dsn, store, keyring
        self.subscriptions = Subscriptions(dsn)

    def command(self, path: str, body: dict[str, Any], key: str) -> dict[str, Any]:
        """Handles a command once, however often it is sent with its key."""
        command = msgspec.convert(body, COMMANDS[path])
        boundary = None
        if isinstance(command, domain.OpenAccount):
            boundary = tagged(self.store.personal_tag("email", str(command.email)))
        context = Context(correlation_id=key)
        done = self.store.handle(command, idempotency_key=key, context=context, boundary=boundary)
        return {"version": done.version, "token": str(done.token), "repeated": done.repeated}

    def balance(self, account: str, after: str | None) -> dict[str, str] | None:
        """Reads the table; after a token, once it has the token's events."""
        if after is not None:
            self.subscriptions.wait_for("balances", Token.parse(after), timeout_s=10)
        with psycopg.connect(self.dsn, prepare_threshold=None) as connection:
            query = "SELECT balance FROM balances WHERE account = %s"
            row = connection.execute(query, [account]).fetchone()
        return None if row is None else {"account": account, "balance": str(row[0])}

    def close(self) -> None:
        """Gives back the connections."""
        for each in (self.store, self.keyring, self.subscriptions):
            each.close()


class BankHandler(BaseHTTPRequestHandler):
    """Translates between HTTP and the bank; `bank` is set by the server."""

    bank: Bank

    def do_POST(self) -> None:
        """Takes a command."""
        self._answer(self._post)

    def do_GET(self) -> None:
        """Reads."""
        self._answer(self._get)

    def do_DELETE(self) -> None:
        """Forgets a person."""
        self._answer(self._delete)

    def _post(self) -> tuple[int, Any]:
        key = self.headers.get("Idempotency-Key")
        if self.path not in COMMANDS or not key:
            return 400, "an unknown command, or no Idempotency-Key"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not body.keys() <= COMMANDS[self.path].__annotations__.keys():
            return 400, "an unknown field"
        return 200, self.bank.command(self.path, body, key)

    def _get(self) -> tuple[int, Any]:
        url = urlsplit(self.path)
        if url.path == "/ready":
            return 200, {}
        after = parse_qs(url.query).get("after", [None])[0]
        found = self.bank.balance(url.path.removeprefix("/accounts/"), after)
        return (404, "no such account") if found is None else (200, found)

    def _delete(self) -> tuple[int, Any]:
        owner = self.path.removeprefix("/owners/")
        return 200, self.bank.keyring.shred(self.bank.store.tenant, owner)

    def _answer(self, work: Any) -> None:
        try:
            status, body = work()
        except Rejected as error:
            status, body = 409, type(error).__name__
        except IdempotencyConflictError as error:
            status, body = 422, str(error)
        except (ValueError, msgspec.ValidationError) as error:
            status, body = 400, str(error)
        except (EventStoreError, psycopg.Error) as error:
            # a newer release may know the event: another worker answers the next attempt
            again = isinstance(error, (UndeclaredError, psycopg.Error)) or error.retriable
            status, body = (503 if again else 400), type(error).__name__
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's
        """Logs no request."""
