"""Site: where the servers of a project are, and how its source is reached there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cdc.column_rule import Hiding
from cdc.postgres import session
from headwater import runtime
from headwater.platform.specs import capture_spec, job_spec, with_database

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from headwater.project.project import Project
    from headwater.runtime import Endpoints, RuntimeSpec
    from projections.definition.views import DerivedView
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan


@dataclass(frozen=True, slots=True)
class Site:
    """A project, and its servers once they were started."""

    project: Project
    runtime: RuntimeSpec

    @property
    def source(self) -> str:
        """Name of the source."""
        return self.project.source.name

    @property
    def endpoints(self) -> Endpoints:
        """Where the servers answer, once they were started."""
        return runtime.endpoints(self.runtime)

    @property
    def source_dsn(self) -> str:
        """How the source is reached: as the settings say, else in the local Postgres."""
        external = self.project.settings.for_source(self.source).dsn
        if external is not None:
            return external.get_secret_value()
        return with_database(self.endpoints.postgres_dsn or "", self.source)

    @property
    def hiding(self) -> Hiding:
        """Rules that hide columns."""
        salt = self.project.settings.for_source(self.source).salt
        return Hiding(self.project.source.columns, salt.get_secret_value() if salt else None)

    def connect(self) -> Connection[Any]:
        """Opens a session with the source.

        Raises:
            PostgresError: It cannot be reached.
        """
        return session.connect(self.source_dsn)

    def capture_spec(self) -> CaptureSpec:
        """Says how the source is captured."""
        return capture_spec(self.project, self.source_dsn, self.endpoints)

    def job_spec(
        self, plans: Iterable[ViewPlan], derived: tuple[DerivedView, ...] | None = None
    ) -> JobSpec:
        """Says what the job works on.

        Args:
            plans: Views of tables.
            derived: Derived views; None for those that are declared.
        """
        spec = job_spec(self.project, tuple(plans), self.source_dsn, self.endpoints)
        return spec if derived is None else replace(spec, derived=derived)
