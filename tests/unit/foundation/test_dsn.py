"""A DSN that cannot be read: no error shows any of it, because it may be the password."""

from __future__ import annotations

import traceback

import pytest

from cdc.postgres import session
from cdc.postgres.errors import PostgresRefusedError
from eventstore.errors import LoginRefusedError
from eventstore.postgres.audit import PostgresAudit
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.postgres.log import PostgresEventLog
from eventstore.postgres.schema import upgrade
from eventstore.privacy.master_key import new_master_keys
from foundation.dsn import misread

UNREADABLE = (
    "postgresql://app:s3cret%zz@127.0.0.1:1/db",
    "postgresql://app:s3cret word@127.0.0.1:1/db",
    "postgresql://app:s3cret/x@127.0.0.1:1/db",
    "postgresql://app:p@s3cret@127.0.0.1:1/db",
    "postgresql://app:s3cret",
    "postgresql:/app:s3cret@127.0.0.1/db",
    "jdbc:postgresql://app:s3cret@127.0.0.1/db",
    "host=127.0.0.1 port=1 password=word s3cret",
    "s3cret",
)


def shown(error: BaseException) -> str:
    """An error as a log shows it: its texts, and those of its causes, without lines of code."""
    texts = [str(error), getattr(error, "detail", None), getattr(error, "hint", None)]
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join([*map(str, texts), *(line for line in lines if not line.startswith(" "))])


@pytest.mark.parametrize("dsn", UNREADABLE)
@pytest.mark.parametrize(
    "opened",
    [
        PostgresEventLog,
        upgrade,
        lambda dsn: PostgresAudit(dsn).seal(),
        lambda dsn: PostgresKeyRing(dsn, new_master_keys("1")),
    ],
    ids=["a log", "an upgrade", "an audit", "a key ring"],
)
def test_the_event_store_shows_nothing_of_a_dsn_that_it_cannot_read(opened, dsn):
    with pytest.raises(LoginRefusedError) as raised:
        opened(dsn)

    assert "s3cret" not in shown(raised.value)
    assert "%40" in raised.value.hint
    assert not raised.value.retriable


@pytest.mark.parametrize("dsn", UNREADABLE)
def test_capture_shows_nothing_of_a_dsn_that_it_cannot_read(dsn):
    with pytest.raises(PostgresRefusedError) as raised:
        session.connect(dsn, timeout_s=1)

    assert "s3cret" not in shown(raised.value)
    assert "%40" in raised.value.hint


@pytest.mark.parametrize("dsn", [None, 5])
def test_what_is_no_text_is_no_dsn(dsn):
    with pytest.raises(LoginRefusedError):
        PostgresEventLog(dsn)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, False),
        ({"host": "db.example.org", "port": "5432"}, False),
        ({"host": "one,two,three", "port": "5432,5433,"}, False),
        ({"host": "/var/run/post@gres"}, False),
        ({"host": "@abstract"}, False),
        ({"host": "ss@db.example.org"}, True),
        ({"host": "db", "port": "s3cret"}, True),
        ({"host": "one,ss@two"}, True),
    ],
)
def test_a_password_that_was_read_as_host_or_port_is_recognized(parts, expected):
    assert expected == misread(parts)
