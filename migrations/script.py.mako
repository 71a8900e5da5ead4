"""${message}."""

from __future__ import annotations

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """What changes and why; `migrations/tables.py` follows."""
    ${upgrades if upgrades else "op.execute(...)"}


def downgrade() -> None:
    """Takes it back."""
    ${downgrades if downgrades else "op.execute(...)"}
