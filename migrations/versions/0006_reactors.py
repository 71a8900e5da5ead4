"""Which subscriptions are reactors, and whether these are paused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from alembic import context, op

revision = "0006_reactors"
down_revision = "0005_mark"
branch_labels = None
depends_on = None

_FILES: Final = Path(__file__).parents[1] / "sql" / revision


def upgrade() -> None:
    """Runs the files of SQL in the order of their names."""
    for path in sorted(_FILES.glob("*.sql")):
        _run(path.read_text(encoding="utf-8"))


def downgrade() -> None:
    """Drops the function and the columns."""
    _run(
        "DROP FUNCTION eventstore.pause_reactor;"
        "ALTER TABLE eventstore.subscriptions DROP COLUMN reactor, DROP COLUMN paused_at,"
        " DROP COLUMN breaker_opened_at, DROP COLUMN breaker_error"
    )


def _run(script: str) -> None:
    # As it stands: neither SQLAlchemy nor the driver may take `%` and `:` in it for parameters.
    if context.is_offline_mode():
        op.get_context().impl.static_output(script.strip() + "\n")
    else:
        driver: Any = op.get_bind().connection.driver_connection
        driver.execute(script)
