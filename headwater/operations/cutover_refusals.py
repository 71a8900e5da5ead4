"""Why a cutover is refused: versions that differ, and derived views that would be paused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from projections.errors import VersionDiffersError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from projections.versions.compare import VersionDifference
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]


def left_behind(target: ViewVersion, still: Mapping[str, str]) -> VersionDiffersError:
    """Returns the refusal of a version that some derived views do not fit.

    Args:
        target: The version.
        still: By view, why it would be paused.
    """
    view = target.view
    return VersionDiffersError(
        f"views derived from {view} do not fit version {target.number} of it, and would pause",
        detail=_reasons(still),
        hint=f"correct their queries, then headwater view rebuild and cutover them before {view};"
        " --accept-differences shows it all the same",
    )


def _reasons(still: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in still.items())


def differs(
    target: ViewVersion, compared: VersionDifference, still: Mapping[str, str]
) -> VersionDiffersError:
    """Returns the refusal of a version with differences that its definition does not explain.

    Args:
        target: The version.
        compared: How it differs from the active version.
        still: By view, why it would be paused.
    """
    view, difference = target.view, compared.unexplained
    if compared.incomparable is not None:
        return VersionDiffersError(
            f"version {target.number} of view {view} cannot be compared with what readers see",
            detail="; ".join(filter(None, (compared.incomparable, _reasons(still)))),
            hint=f"headwater view cutover {view} --accept-differences shows it all the same",
        )
    counts = {
        "only in the new one": difference.appeared,
        "only in the present one": difference.gone,
        "with other values": difference.changed,
    }
    differences = [f"{count} rows {kind}" for kind, count in counts.items() if count]
    differences += [f"column {name} is new" for name in difference.columns_added]
    differences += [f"column {name} is gone" for name in difference.columns_gone]
    differences += [f"{column}: {rows} rows" for column, rows in difference.by_column.most_common()]
    differences += [_reasons(still)] if still else []
    return VersionDiffersError(
        f"version {target.number} of view {view} differs in what its definition does not explain",
        detail="; ".join(differences),
        hint=f"headwater view compare {view} shows examples; --accept-differences accepts them",
    )
