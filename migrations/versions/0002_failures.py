"""Where a handler failed, and which prepared transaction holds the log back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from alembic import context, op

revision = "0002_failures"
down_revision = "0001_event_store"
branch_labels = None
depends_on = None

_FILES: Final = Path(__file__).parents[1] / "sql" / revision
# The view keeps its two new columns: to drop it would take its grants from every role.
_DROP: Final = """
ALTER TABLE eventstore.parked_events DROP COLUMN error_location;
ALTER TABLE eventstore.timers DROP COLUMN error_location;
"""


def upgrade() -> None:
    """Runs the files of SQL in the order of their names."""
    for path in sorted(_FILES.glob("*.sql")):
        _run(path.read_text(encoding="utf-8"))


def downgrade() -> None:
    """Drops the columns."""
    _run(_DROP)


def _run(script: str) -> None:
    # As it stands: neither SQLAlchemy nor the driver may take `%` and `:` in it for parameters.
    if context.is_offline_mode():
        op.get_context().impl.static_output(script.strip() + "\n")
    else:
        driver: Any = op.get_bind().connection.driver_connection
        driver.execute(script)
