"""A transaction that appends holds a bounded number of locks, whatever it appends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from alembic import context, op

revision = "0003_locks"
down_revision = "0002_failures"
branch_labels = None
depends_on = None

_SQL: Final = Path(__file__).parents[1] / "sql"
_FILES: Final = _SQL / revision
_BEFORE: Final = _SQL / "0001_event_store" / "13_append.sql"
_FUNCTION: Final = re.compile(
    r"^CREATE (FUNCTION eventstore\.(?:append_event|append_events|lock_append)\(.*?^\$\$;)",
    re.MULTILINE | re.DOTALL,
)


def upgrade() -> None:
    """Runs the files of SQL in the order of their names."""
    for path in sorted(_FILES.glob("*.sql")):
        _run(path.read_text(encoding="utf-8"))


def downgrade() -> None:
    """Puts the functions back as the first revision made them."""
    for function in _FUNCTION.findall(_BEFORE.read_text(encoding="utf-8")):
        _run(f"CREATE OR REPLACE {function}")


def _run(script: str) -> None:
    # As it stands: neither SQLAlchemy nor the driver may take `%` and `:` in it for parameters.
    if context.is_offline_mode():
        op.get_context().impl.static_output(script.strip() + "\n")
    else:
        driver: Any = op.get_bind().connection.driver_connection
        driver.execute(script)
