"""Only locks of sessions that use the table of events hold the log back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from alembic import context, op

revision = "0005_mark"
down_revision = "0004_tables"
branch_labels = None
depends_on = None

_FILES: Final = Path(__file__).parents[1] / "sql" / revision
_REPLACED: Final = (
    "FUNCTION eventstore.hold_mark",
    "FUNCTION eventstore.high_water_mark",
    "VIEW eventstore.writers_under_way AS\nSELECT l.pid,\n",
)
_BEFORE: Final = (
    _FILES.parent / "0001_event_store" / "12_order.sql",
    _FILES.parent / "0002_failures" / "10_failures.sql",
)


def upgrade() -> None:
    """Runs the files of SQL in the order of their names."""
    for path in sorted(_FILES.glob("*.sql")):
        _run(path.read_text(encoding="utf-8"))


def downgrade() -> None:
    """Makes the functions and the view as they were."""
    for path in _BEFORE:
        _, *made = path.read_text(encoding="utf-8").split("\nCREATE ")
        for statement in made:
            if statement.removeprefix("OR REPLACE ").startswith(_REPLACED):
                _run("CREATE OR REPLACE " + statement.removeprefix("OR REPLACE "))


def _run(script: str) -> None:
    # As it stands: neither SQLAlchemy nor the driver may take `%` and `:` in it for parameters.
    if context.is_offline_mode():
        op.get_context().impl.static_output(script.strip() + "\n")
    else:
        driver: Any = op.get_bind().connection.driver_connection
        driver.execute(script)
