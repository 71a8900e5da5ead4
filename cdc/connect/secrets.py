"""Secrets of a connector: kept in files that its workers read, never in its configuration.

Connect writes a connector's configuration into a topic, in clear, and shows it to a caller that
asks its REST interface. A reference `${secrets:folder:name}` is stored there instead; the worker
opens the file when it starts the task (Kafka's DirectoryConfigProvider, named `secrets`).
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from foundation.atomic_file import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cdc.capture import CaptureSpec

PASSWORD: Final = "password"  # noqa: S105  # its name
SALT: Final = "salt"
"""Name of the secret that is the salt for hashed columns."""

KEY_PASSWORD: Final = "sslpassword"  # noqa: S105  # its name
"""Name of the secret that decrypts the key of a client certificate."""

PROVIDER: Final = "secrets"
"""Name of the provider in the workers' configuration template."""


def reference(spec: CaptureSpec, name: str, value: str) -> str:
    """Returns the configuration value for a secret: a reference, or the secret if unavoidable."""
    named = {PASSWORD: spec.connector_password, SALT: spec.connector_salt}.get(name)
    if named is not None:
        return named
    folder = _folder(spec)
    return value if folder is None else f"${{{PROVIDER}:{folder}:{name}}}"


def differing(spec: CaptureSpec, secrets: Mapping[str, str]) -> list[str]:
    """Returns the names of secrets whose files are missing or differ."""
    folder = _folder(spec)
    if folder is None:
        return []
    return sorted(name for name, value in secrets.items() if _read(folder / name) != value)


def write(spec: CaptureSpec, secrets: Mapping[str, str]) -> None:
    """Writes the files atomically, readable only by this user."""
    folder = _folder(spec)
    if folder is None:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, value in secrets.items():
        write_atomically(folder / name, value, mode=0o600)


def remove(spec: CaptureSpec) -> None:
    """Deletes the files of a source."""
    folder = _folder(spec)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _folder(spec: CaptureSpec) -> Path | None:
    return None if spec.secrets_folder is None else spec.secrets_folder / spec.name


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
