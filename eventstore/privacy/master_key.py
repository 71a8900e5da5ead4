"""Master keys: wrap the keys of subjects, and are never stored beside them."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from eventstore.errors import SubjectKeyError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KEY_BYTES: Final = 32
"""AES-256."""

NONCE_BYTES: Final = 12
"""Bytes of a random nonce for each encryption; one key is safe for 2**32 encryptions."""

FILE_BYTES_MAX: Final = 64 * 1024
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, repr=False)
class MasterKeys:
    """The current master key, and earlier ones.

    To rotate, add the new key in every process, then make it `current` in every process, then call
    `KeyRing.rotate`, then remove the old key.

    Attributes:
        current: Id of the key that wraps new keys.
        keys: 32 bytes for each id, for the current key and every key that still wraps others.
    """

    current: str
    keys: Mapping[str, bytes]

    def __post_init__(self) -> None:
        for name, key in self.keys.items():
            if not _ID.fullmatch(name):
                raise SubjectKeyError(
                    "a master key's name has only letters, digits, '_', '.' and '-'",
                    hint="such as 2026-01",
                )
            if type(key) is not bytes or len(key) != KEY_BYTES:
                raise SubjectKeyError(
                    f"a master key has {KEY_BYTES} bytes", detail=f"key {name} has another length"
                )
        if self.current not in self.keys:
            raise SubjectKeyError(
                "the current master key is not among the keys", detail=f"key {self.current:.80}"
            )
        object.__setattr__(self, "keys", MappingProxyType(dict(self.keys)))

    def __repr__(self) -> str:
        return f"MasterKeys(current={self.current!r}, keys=<{len(self.keys)} hidden>)"

    def __reduce__(self) -> tuple[type[MasterKeys], tuple[str, dict[str, bytes]]]:
        return MasterKeys, (self.current, dict(self.keys))

    def wrap(self, key: bytes, bound_to: bytes) -> bytes:
        """Returns a subject's key encrypted under the current master key.

        Args:
            key: The subject's key.
            bound_to: Associated data that identifies the subject; unwrapping requires the same.
        """
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self.keys[self.current]).encrypt(nonce, key, bound_to)

    def unwrap(self, wrapped: bytes, key_id: str, bound_to: bytes) -> bytes:
        """Returns the key that `wrap` encrypted.

        Raises:
            SubjectKeyError: The master key is unknown, or the stored key was altered or belongs to
                another subject.
        """
        master = self.keys.get(key_id)
        if master is None:
            raise SubjectKeyError(
                "a subject's key is wrapped by an unknown master key",
                detail=f"master key {key_id}",
                hint="provide it beside the current key, and rotate before you remove it",
            )
        try:
            return AESGCM(master).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError):
            raise SubjectKeyError(
                "a subject's key cannot be unwrapped",
                detail=f"master key {key_id}: another key of that name, or the row was altered",
            ) from None


def new_master_keys(current: str) -> MasterKeys:
    """Returns one new random master key under this id."""
    return MasterKeys(current, {current: os.urandom(KEY_BYTES)})


def master_key_line(keys: MasterKeys, key_id: str) -> str:
    """Returns the line of a key file that `read_master_keys` reads: the id and base64."""
    return f"{key_id} {base64.b64encode(keys.keys[key_id]).decode()}\n"


def read_master_keys(path: Path) -> MasterKeys:
    """Reads a key file: an id and the key in base64 on each line, the current key first.

    Empty lines and lines that start with `#` are ignored.

    Raises:
        SubjectKeyError: The file cannot be read, other users can read or write it, or a line is
            invalid.
    """
    lines = [line.strip() for line in _private_text(path).splitlines()]
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            name, key = _parsed(line, number)
            if name in keys:
                raise SubjectKeyError(
                    "the master key file names a key twice", detail=f"line {number}"
                )
            keys[name] = key
    if not keys:
        raise SubjectKeyError("the master key file has no key", detail=str(path))
    return MasterKeys(next(iter(keys)), keys)


def _private_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # of the open file, so that it cannot be exchanged in between
            state = os.fstat(file.fileno())
            if stat.S_IMODE(state.st_mode) & _OTHERS:
                raise SubjectKeyError(
                    "the master key file is accessible to other users",
                    detail=f"{path} has mode {stat.S_IMODE(state.st_mode):04o}",
                    hint=f"chmod 600 {path}",
                )
            return file.read(FILE_BYTES_MAX).decode("ascii")
    except OSError as error:
        raise SubjectKeyError(
            "a master key file cannot be read", detail=f"{path}: {error.strerror}"
        ) from error
    except UnicodeDecodeError:
        raise SubjectKeyError("the master key file must be plain text", detail=str(path)) from None


def _parsed(line: str, number: int) -> tuple[str, bytes]:
    name, _, text = line.partition(" ")
    try:
        return name, base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise SubjectKeyError(
            "each line of the master key file must be an id and a key in base64",
            detail=f"line {number}",
        ) from None
