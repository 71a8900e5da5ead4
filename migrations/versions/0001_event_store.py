"""The event store: schemas `eventstore` and `eventstore_keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from alembic import context, op

revision = "0001_event_store"
down_revision = None
branch_labels = None
depends_on = None

_FILES: Final = Path(__file__).parents[1] / "sql" / revision
# Any role may see which version it works with; the table says nothing else.
_SHOW_VERSION: Final = """
GRANT USAGE ON SCHEMA headwater_migrations TO PUBLIC;
GRANT SELECT ON headwater_migrations.alembic_version TO PUBLIC;
"""
_DROP: Final = """
DROP SCHEMA IF EXISTS eventstore CASCADE;
DROP SCHEMA IF EXISTS eventstore_keys CASCADE;
"""


def upgrade() -> None:
    """Runs the files of SQL in the order of their names."""
    for path in sorted(_FILES.glob("*.sql")):
        _run(path.read_text(encoding="utf-8"))
    _run(_SHOW_VERSION)


def downgrade() -> None:
    """Drops the schemas with every event and every key."""
    _run(_DROP)


def _run(script: str) -> None:
    # As it stands: neither SQLAlchemy nor the driver may take `%` and `:` in it for parameters.
    if context.is_offline_mode():
        op.get_context().impl.static_output(script.strip() + "\n")
    else:
        driver: Any = op.get_bind().connection.driver_connection
        driver.execute(script)
