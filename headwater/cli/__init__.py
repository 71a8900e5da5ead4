"""The command `headwater`: a thin skin over the Python API.

Answers go to stdout (`--json`: exactly one document), everything else to stderr. Exit codes: 0 ok,
1 failed, 2 usage or configuration, 3 unhealthy or different, 4 a dependency is missing,
130 interrupted.
"""

from __future__ import annotations

from headwater.cli.app import command_line, main

__all__ = ["command_line", "main"]
