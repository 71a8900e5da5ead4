"""Which tables a subscription alone writes, so that a replay does not double them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from alembic import context, op

revision = "0004_tables"
down_revision = "0003_locks"
branch_labels = None
depends_on = None

_FILES: Final = Path(__file__).parents[1] / "sql" / revision


def upgrade() -> None:
    """Runs the files of SQL in the order of their names."""
    for path in sorted(_FILES.glob("*.sql")):
        _run(path.read_text(encoding="utf-8"))


def downgrade() -> None:
    """Drops the column."""
    _run("ALTER TABLE eventstore.subscriptions DROP COLUMN tables")


def _run(script: str) -> None:
    # As it stands: neither SQLAlchemy nor the driver may take `%` and `:` in it for parameters.
    if context.is_offline_mode():
        op.get_context().impl.static_output(script.strip() + "\n")
    else:
        driver: Any = op.get_bind().connection.driver_connection
        driver.execute(script)
