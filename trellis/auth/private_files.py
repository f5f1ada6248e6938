"""Small files with secrets in the data directory, which only the user of the broker can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from trellis import logs
from trellis.settings import SettingsError

#: File in the data directory with the secret from which the salts of unknown users are derived.
SCRAM_SECRET_FILE: Final = "scram-secret"
#: Size of this secret in bytes.
SCRAM_SECRET_BYTES: Final = 32


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically, with mode 0600. Raises OSError."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def scram_secret(directory: Path | None) -> bytes:
    """Return the secret from which SCRAM salts of unknown users are derived.

    The secret is read from the data directory, so that these salts stay the same after a restart,
    as the salts of existing users do. If there is no file, the secret is random, and written to the
    file. Without a data directory (`:memory:`), or if the file cannot be written, the secret is
    kept in memory only. Raises SettingsError if the file is damaged.
    """
    fresh = secrets.token_bytes(SCRAM_SECRET_BYTES)
    if directory is None:
        return fresh
    path = directory / SCRAM_SECRET_FILE
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); make it readable for the broker"
        ) from None
    else:
        if len(secret) == SCRAM_SECRET_BYTES:
            return secret
        raise SettingsError(
            f"{path}: the file has {len(secret)} bytes instead of {SCRAM_SECRET_BYTES}; restore "
            "the file from a copy, or delete the file to get a new secret"
        )
    try:
        write_private(path, fresh)
    except OSError as error:
        logs.warning(
            "scram_secret_unwritten",
            path=path,
            error=error.strerror,
            note="the SCRAM salts of unknown users change at the next restart, so clients can find "
            "out which users exist; make the data directory writable",
        )
    return fresh
